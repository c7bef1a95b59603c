"""Links carry RoCEv2 datagrams between NICs; wrappers around them drop, record and trace."""
