"""What makes passes: native graphs on the CPU, portable ones on other devices.

An engine's module is imported when it is asked for.
"""

from edgespec.runtime.engines.telemetry import switch_off

switch_off()  # here, since no engine's module is imported before this package
