"""A report as one self-contained page: no network, no script, right on a phone, in the dark and on paper."""

from parity.report.html.page import render_html

__all__ = ["render_html"]
