"""What commands share: a flag without a `--no-`, and one result on stdout."""

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative=())]


def print_result(result: dict[str, Any] | str) -> None:
    """A result for programs, as JSON, or for people, as it is."""
    sys.stdout.write((result if isinstance(result, str) else json.dumps(result)) + "\n")
