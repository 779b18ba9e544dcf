//! The FUSE front: a volume as a mount.
//!
//! The one idea: everything here is a translation. Requests become calls of [`moafs_vfs::Vfs`] one to one, mount
//! options become validated settings in one step, and a mount is served by threads of `moafs_fuse` while one thread
//! of ours waits for signals. Generic over the format; the caller opens the volume.
//!
//! | module | what it holds |
//! |---|---|
//! | [`front`] | [`Front`]: FUSE requests to vfs calls |
//! | `nodes` | the bijection between inode numbers and FUSE's node ids |
//! | `convert`, `ioctl` | between the words of FUSE and of vfs |
//! | [`control`] | the control directory `.moafs/` |
//! | [`log`] | messages of a live mount |

pub mod control;
mod convert;
pub mod front;
mod ioctl;
pub mod log;
mod nodes;

pub use front::Front;
pub use log::Log;
