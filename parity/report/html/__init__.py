"""A report as one self-contained page without network or script, for screens, phones, dark mode and paper."""

from parity.report.html.page import render_html

__all__ = ["render_html"]
