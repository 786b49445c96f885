"""Pictures of a topology: a mermaid diagram, an SVG image, a page of HTML."""
