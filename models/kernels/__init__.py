"""Attention, behind one call."""
