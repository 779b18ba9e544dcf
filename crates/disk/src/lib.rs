//! The ground: an array of bytes with reads, writes, flushes and discards
