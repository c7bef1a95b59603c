"""Reports for people: line charts as SVG, and pages that hold all they need."""
