"""What makes passes: native graphs on the CPU, portable ones on other devices.

An engine's module is imported when it is asked for.
"""

from edgespec.runtime.engines.libraries import require_onnxruntime, switch_off_telemetry

# Here, since no module of an engine is imported before this package.
switch_off_telemetry()
require_onnxruntime()
