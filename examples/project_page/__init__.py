"""A project page that shows what happens while it is open; see its README."""
