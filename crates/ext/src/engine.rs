//! The engine: a mounted ext volume, and how it implements [`Format`](moafs_vfs::format::Format).
//!
//! | module | content |
//! |---|---|
//! | `volume` | [`Ext`]: the parts of a mounted volume |
//! | `mount` | opening a volume |
//! | `superblock` | changes of the superblock |
//! | [`incore`] | in-core inodes |
//! | `inodes` | reading inodes, and storing what has changed |
//! | `names` | the names of a directory in memory |
//! | [`map`] | block maps: finding, setting, clearing pointers |
//! | [`extents`] | extent trees: finding, setting, clearing the blocks of a file |
//! | [`inside`] | contents inside an inode, and values in inodes of their own |
//! | [`claim`] | claiming the blocks that a policy has chosen |
//! | [`dir`] | directories: an index in memory over linear blocks |
//! | [`dirindex`] | directory indexes on the disk |
//! | [`neighbours`] | the small files that lie beside another |
//! | [`early`] | addresses allocated at `write()`, for `ffs-paper` |
//! | [`xattr`] | extended attributes |
//! | [`orphans`] | inodes without a name, and files being truncated, on volumes with a journal |
//! | [`op`] | ops: changes and the order in which they reach the disk |
//! | `commit` | durability, and closing the volume |
//! | `format` | [`Ext`] as vfs uses it |
//! | [`survey`] | reporting the layout of the whole volume |
//! | [`recover`] | after a crash of our own: returning leaked blocks and inodes |

mod claim;
mod commit;
mod damage_record;
mod dir;
mod dirindex;
mod dirlist;
mod early;
mod extents;
mod format;
pub mod incore;
mod inodes;
mod inside;
mod map;
mod mount;
mod names;
mod neighbours;
mod op;
mod orphans;
mod recover;
mod superblock;
mod survey;
mod volume;
mod xattr;

#[cfg(test)]
mod tests;

pub use incore::Incore;
pub use mount::OpenOptions;
pub use volume::Ext;
