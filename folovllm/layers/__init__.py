"""The pieces a decoder is made of: pure tensor modules that know no request."""
