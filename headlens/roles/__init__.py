"""The roles of heads: what is measured of them on a corpus, and from which threshold a head has a role."""
