"""Generated C, compiled and run here and under emulation."""
