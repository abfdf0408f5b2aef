"""Language and case of a text."""

from functools import cache
from typing import Any, Literal

from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.suites.formats import counting
from evalsvc.suites.formats.base import Constraint, Counted

SEED = 0
CHARACTERS = 20_000  # the detector reads no more than 10,000, white space aside


class Language(Constraint):
    """The text is of a language (its code: `en`, `de`, `zh-cn`), as langdetect sees it with a fixed seed.

    Where nothing in the text tells a language (digits, marks), the constraint is met, as in IFEval.
    """

    kind: Literal["language"]
    language: str

    def ready(self, where: str) -> None:
        """Refuses a language that the detector does not know."""
        _check_known(self.language, where)

    def broken(self, text: str) -> str | None:
        """`other_language`."""
        return None if detected(text) in (None, self.language) else "other_language"


class Casing(Constraint):
    """All letters are capitals (`upper`) or small (`lower`), in a text of the language where one is named."""

    kind: Literal["casing"]
    case: Literal["upper", "lower"]
    language: str | None = None

    def ready(self, where: str) -> None:
        """Refuses a language that the detector does not know."""
        if self.language is not None:
            _check_known(self.language, where)

    def broken(self, text: str) -> str | None:
        """`wrong_case` or `other_language`."""
        if not (text.isupper() if self.case == "upper" else text.islower()):
            return "wrong_case"
        met = self.language is None or detected(text) in (None, self.language)
        return None if met else "other_language"


class CapitalWords(Counted):
    """So many words in capitals alone (`counting.capital_words`)."""

    kind: Literal["capital_words"]

    def broken(self, text: str) -> str | None:
        """`too_few` or `too_many`."""
        return self.outside(counting.capital_words(text))


def detected(text: str) -> str | None:
    """Code of a text's language; None where nothing in it tells one."""
    from langdetect.lang_detect_exception import LangDetectException

    detector = _factory().create()
    detector.append(text[:CHARACTERS].encode("utf-8", "replace").decode("utf-8"))
    try:
        return detector.detect()
    except LangDetectException:
        return None


@cache
def _factory() -> Any:
    """A factory of detectors of our own: the package's one is seeded, or not, by whoever else uses it."""
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    class Seeded(DetectorFactory):
        seed = SEED

    made = Seeded()
    made.load_profile(PROFILES_DIRECTORY)
    return made


def _check_known(language: str, where: str) -> None:
    try:
        known = _factory().get_lang_list()
    except ImportError as error:
        raise CapabilityError(f"{where}: languages need the package `langdetect` (extra `engine`)") from error
    if language not in known:
        raise ConfigError(f"{where}: the language {language!r} is not among {', '.join(sorted(known))}")
