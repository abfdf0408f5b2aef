"""Output formats: does the answer have the asked form, and the asked content in it?"""

from evalsvc.suites.formats.case import FormatCase, FormatSuite

__all__ = ["FormatCase", "FormatSuite"]
