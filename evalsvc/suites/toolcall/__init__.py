"""Tool calls: are the right functions called with the right arguments, in the form that was asked?"""

from evalsvc.suites.toolcall.suite import ToolCallSuite

__all__ = ["ToolCallSuite"]
