//! The FUSE front: a volume as a mount.
//!
//! Everything here is a translation. Requests become calls of [`moafs_vfs::Vfs`] one to one, mount options become
//! validated settings in one step, and a mount is served by threads of `moafs_fuse` while one more thread waits for
//! signals. Generic over the format; the caller opens the volume.
//!
//! | module | what it holds |
//! |---|---|
//! | [`front`] | [`Front`]: FUSE requests to vfs calls |
//! | `nodes` | the mapping between inode numbers and FUSE's node ids |
//! | [`identity`] | whose the files are for the kernel, and who a caller is on the volume |
//! | `convert`, `ioctl` | conversions between the types of FUSE and of vfs |
//! | [`control`], [`control_path`], `stats` | the control directory `.moafs/`, opening its files by another process, and what it shows |
//! | [`job`], [`defrag`](mod@defrag), [`layout`] | control files that start jobs: moving scattered files together, looking at the layout |
//! | [`swap`] | the control file, and the file beside it, through which the kernel swaps to the volume |
//! | [`options`], [`size`] | mount options: [`Settings`]; sizes as they are typed |
//! | [`source`], [`loop_device`], [`medium`] | the image or device, the kernel's view of it, the disk below it |
//! | [`serve`](mod@serve), `pressure`, `failure` | a live mount: signals, memory pressure, a volume that failed, closing |
//! | [`remount`](mod@remount), `follower` | other options for a mount: changing them, following them |
//! | `attributes` | telling the kernel of attributes, contents and names that changed without its knowledge |
//! | `forgotten` | asking the kernel which removed files it no longer has |
//! | `outliving` | syncs that go on when their caller was killed |
//! | `ticking` | threads that do something again and again |
//! | [`unmount`](mod@unmount), `release` | unmounting by another process, and waiting for the daemon |
//! | [`mount_table`], [`busy`] | the kernel's mounts; waiting for an image |
//! | [`confine`](mod@confine) | dropping privileges that a daemon of root does not need |
//! | [`log`] | messages of a live mount |

mod attributes;
pub mod busy;
pub mod confine;
pub mod control;
pub mod control_path;
mod convert;
pub mod defrag;
mod driver_options;
mod failure;
mod follower;
mod forgotten;
pub mod front;
pub mod identity;
mod ioctl;
pub mod job;
pub mod layout;
pub mod limits;
pub mod log;
pub mod loop_device;
pub mod medium;
pub mod mount_table;
mod nodes;
pub mod option_list;
pub mod options;
mod outliving;
mod pressure;
mod process;
mod release;
pub mod remount;
mod same_file;
pub mod serve;
pub mod size;
pub mod source;
mod stats;
pub mod swap;
mod ticking;
pub mod unmount;

pub use front::Front;
pub use identity::Identity;
pub use log::Log;
pub use options::Settings;
pub use process::caller_is_gone;
pub use serve::{Mounting, ServeError, serve};
pub use source::Source;
pub use stats::MoreCounters;
