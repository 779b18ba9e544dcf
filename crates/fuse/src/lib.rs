//! FUSE over io_uring and /dev/fuse behind one synchronous trait
