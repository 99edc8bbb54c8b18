"""Pictures as SVG text, made by pure functions. Colours are classes, which the style sheet of a page or the one in a file paints."""
