"""Streamlit pages over the database, read only. Never imports torch or the engine."""
