"""How the documentation is built: `make docs`."""

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "jobsubmit"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "jobsubmit"
html_extra_path = ["llms.txt"]
nitpicky = True
lexers["mermaid"] = TextLexer()  # diagrams are shown as their text: drawing them needs the network
