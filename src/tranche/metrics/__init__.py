"""What can be measured of a node, under stable names: the catalogue of metrics, and how facts become samples."""
