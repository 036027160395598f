"""What tests of several rooms share, by the room that it belongs to; what tests of one room share stands beside them."""
