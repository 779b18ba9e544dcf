//! What a file system is, whatever its format
