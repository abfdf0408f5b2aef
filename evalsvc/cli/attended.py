"""`python -m evalsvc.cli.attended PARENT ARGUMENTS`: a command that ends when the process that started it does.

Not for people: workers start runs by it, so that a killed worker leaves no run behind that holds the database.
"""

import sys
import threading

from evalsvc.cli.main import main
from evalsvc.parallel import end_with


def attended(arguments: list[str]) -> None:
    """Runs the command line after the first argument, which is the process to live no longer than."""
    threading.Thread(target=end_with, args=(int(arguments[0]),), daemon=True).start()
    main(arguments[1:])


if __name__ == "__main__":
    attended(sys.argv[1:])
