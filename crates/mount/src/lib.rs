//! The FUSE front: requests to vfs calls, control directory, mount options, signals
