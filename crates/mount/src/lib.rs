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
//! | [`control`], `stats` | the control directory `.moafs/` and what it shows |
//! | [`defrag`](mod@defrag) | the control file that moves scattered files together |
//! | [`swap`] | the control file, and the file beside it, through which the kernel swaps to the volume |
//! | [`options`] | mount options: [`Settings`] |
//! | [`source`], [`loop_device`], [`medium`] | image or device, how the kernel sees it, what it lies on |
//! | [`serve`](mod@serve), `pressure` | a live mount: signals, memory pressure, closing |
//! | [`unmount`](mod@unmount) | unmounting from outside, and waiting for the image |
//! | [`confine`](mod@confine) | what a daemon of root gives up |
//! | [`log`] | messages of a live mount |

pub mod confine;
pub mod control;
mod convert;
pub mod defrag;
pub mod front;
mod ioctl;
pub mod log;
pub mod loop_device;
pub mod medium;
mod nodes;
pub mod options;
mod pressure;
mod process;
pub mod serve;
pub mod source;
mod stats;
pub mod swap;
pub mod unmount;

pub use front::Front;
pub use log::Log;
pub use options::Settings;
pub use serve::{Mounting, ServeError, serve};
pub use source::Source;
pub use stats::MoreCounters;
