"""Tools: functions that may be called, how models write the calls, and what answers them."""
