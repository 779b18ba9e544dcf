//! The part of a file system that is the same for every format.
//!
//! POSIX is written once, here, over a [`Format`] that stores. Written data stay in the file cache and get their
//! addresses later, when there is a reason to write a dirty block back ([`plan::WritebackReason`]); the format then
//! decides which other blocks are written with it and to which addresses ([`Format::plan`]); vfs carries that plan out.
//! vfs knows no on-disk byte.
//!
//! Code that works on any format takes a [`Vfs`] of any [`Format`]; `moafs-ext` and `moafs-f2fs` show how one is made:
//!
//! ```
//! use moafs_vfs::types::{Cookie, Ino, Name};
//! use moafs_vfs::{Credentials, Format, Result, Vfs};
//!
//! /// Returns the names in a directory.
//! fn names<F: Format>(vfs: &Vfs<F>, dir: Ino) -> Result<Vec<Vec<u8>>> {
//!     let mut names = Vec::new();
//!     vfs.list(&Credentials::root(), dir, Cookie::START, &mut |entry| {
//!         names.push(entry.name.as_bytes().to_vec());
//!         true // go on
//!     })?;
//!     Ok(names)
//! }
//!
//! assert!(Name::new(b"notes.txt").is_some());
//! assert!(Name::new(b"a/b").is_none(), "a name is one component of a path");
//! ```
//!
//! # Public modules
//!
//! | module | what it holds |
//! |---|---|
//! | [`types`] | inode numbers, names, attributes, block runs |
//! | [`format`](mod@format) | the seam to the formats: [`Format`], [`FormatOp`] |
//! | [`plan`] | the seam of write-back: [`plan::Plan`], [`plan::DirtyView`] |
//! | [`api`] | the interface for the fronts: [`Vfs`], its options and the arguments of its calls |
//! | [`layout`] | layout score, free runs, scattered files: one measure for all |
//! | [`stored`] | forms that several formats store alike |
//! | `named` | choices with names: [`named_enum!`], the registry of the policies of a format |
//! | [`error`] | [`Error`] and its POSIX numbers |
//! | [`health`] | the reason for which the volume takes no more changes |
//! | [`counters`] | the counters of a volume |
//! | [`swap_space`] | the seam of swap space: blocks allocated in memory only, and the position of the device's head |
//! | [`defrag`] | defragmentation: moving scattered files together again |
//! | `trim` | telling the device which blocks hold nothing |
//!
//! # Layers
//!
//! The state of a volume is a stack of structs, each with fields of its own and the layer below (`layer`). A function
//! belongs to the lowest layer that has all it needs, and cannot reach a higher one. From the top:
//!
//! | layer | its state | modules with its functions |
//! |---|---|---|
//! | `inner::Inner` | the syncer's task | `sync`, `synchronous`: durability; `syncer`: background work |
//! | `names::Namespace` | the rename lock | `names`, `rename`: look-up, listing, every change of names |
//! | `io::Files` | none | `io`, `range_ops`: reading and writing; truncate, allocate, seek, copy. `inline`: contents that leave their inode. `attr`, `xattr` |
//! | `pressure::Pressure` | rounds of freeing space | `pressure`: what is done before ENOSPC when space is short |
//! | `write_back::WriteBack` | the pace of writers | `write_back`: carrying out plans; `room`: writers at the limit of dirty data; `defrag` |
//! | `reader::Reader` | read-aheads under way | `reader`: contents through the cache, with read-ahead |
//! | `reap::Reaper` | inodes without a name | `reap`: giving them back to the format; `co_read`: neighbours of small files |
//! | `page_cache::PageCache` | memory budget, replacement queue, walks | `page_cache`: eviction; `load`: inodes by number; `filling`: blocks from the volume; `survey`: the layout |
//! | `op::Ops` | uncommitted changes, relief | `op`: ops of the format, attributes, commits; `admission`: reservations; `flight`: writes under way; `unmap` |
//! | `inode_table::InodeTable` | inodes in memory, dirty lists | `inode_table`; `sectors`: what the front knows of `st_blocks` |
//! | `volume::Volume` | format, device, options, gate, counters | `volume`; `perm`: permission checks; `bypass`: large reads past the cache |
//!
//! Below the layers are parts that know none of them: `inode`, `pages` (cached blocks of one file), `unplaced` (what
//! its dirty pages may still take on the volume), `dirty` (the lists), `cache` (budget and queue), `fill` (reads under
//! way), `read_ahead`, `walks`, `manner`, `pace`, `full_host`, `relief`, `write_error`, `acl`, `credentials`,
//! `options`, `calls`.
//!
//! # Lock order (take downwards only)
//!
//! | level | lock | held across a device wait? |
//! |---|---|---|
//! | 0 | `Volume::gate`: shared by every call; exclusive to close | yes |
//! | – | waits for space (`Pressure::admit`, with its own lock) and dirty memory (`WriteBack::make_room`): here, holding level 0 only | |
//! | 1 | `Namespace::rename`: before a call locks more directories than one and one below it (why: `rename`) | yes |
//! | 2 | `Inode::lock`: directories ancestor first, unrelated ones by number; then non-directories by number. Co-reading only tries them | yes |
//! | – | `WriteBack::planning`: a plan and the freezing of its pages, or addresses allocated at `write()` | yes |
//! | 3 | pages in flight or filling, by (inode, block): waited for *before* an op begins | yes |
//! | 4 | the format's op gate; inside an op `ReapQueue::steps`: moving blocks of a removed file to the free ones, exclusive to read how many there are; then `Inode::put`: "look at the attributes, tell the format" is one step | reads of metadata only |
//! | 5, 6 | the format's own | |
//! | 7 | leaves, nested only in this order: `Inode::pages`, the reap queue, `Inode::state`, `InodeTable::dirty`; the inode table (may take `Inode::state`), the replacement queue | no |
//!
//! `Format::plan` is called with level 0 and the planning lock, `sync_inode`, `commit` and `run_background_step` with
//! level 0 only. Write-back takes no inode lock: pages in flight are never dropped, and a task that wants them gone
//! waits for them.
//! Levels 0 to 4 are built on the runtime's events; leaves are plain mutexes, never held across a
//! wait or a call of the format.
//!
//! # After a power cut
//!
//! The format decides what a crash may show; vfs contributes three things: the size told to the
//! format never passes the first byte that the device has not seen; blocks are placed only after
//! their data completed; and fsync returns only when the format has reached the newest op that
//! concerned the inode.
//!
//! Times are lazy: a change of access or modification time alone is told to the format with the
//! file's next write-back, by the syncer at the commit interval, by fsync, or at close.

mod acl;
mod admission;
pub mod api;
mod attr;
mod bypass;
mod cache;
mod calls;
mod co_read;
pub mod counters;
mod credentials;
pub mod defrag;
mod dirty;
pub mod error;
mod fill;
mod filling;
mod flight;
pub mod format;
pub mod full_host;
pub mod health;
mod inline;
mod inner;
mod inode;
mod inode_table;
mod io;
mod layer;
pub mod layout;
mod load;
mod manner;
mod named;
mod names;
mod op;
mod options;
mod pace;
mod page_cache;
mod pages;
mod perm;
pub mod plan;
mod pressure;
mod range_ops;
mod read_ahead;
mod reader;
mod reap;
mod relief;
mod rename;
mod room;
mod sectors;
pub mod stored;
mod survey;
pub mod swap_space;
mod sync;
mod syncer;
mod synchronous;
mod trim;
pub mod types;
mod unmap;
mod unplaced;
mod volume;
mod walks;
mod write_back;
mod write_error;
mod xattr;

pub use api::{Credentials, Options, Stat, Vfs};
pub use error::{Error, Result};
pub use format::{Format, FormatOp};
pub use write_error::Process;
