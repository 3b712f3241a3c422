"""Makes what is delivered, such as the image, and checks what is deployed; a development tool, no part of the product."""
