"""What tests of several packages share, by the package that it belongs to; what tests of one package share stands beside them."""
