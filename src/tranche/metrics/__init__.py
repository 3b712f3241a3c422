"""What can be measured of a node, under names that last: the catalogue of metrics, and how facts become samples."""
