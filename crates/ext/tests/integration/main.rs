//! Volumes of the ext family as callers of the crate use them.
//!
//! One program, so that it is linked once.

mod accounting;
mod allocate;
mod check_json;
mod co_read;
mod damaged;
mod defrag;
mod ext4_journal;
mod ext4_read;
mod ext4_write;
mod extents;
mod fast_commit;
mod flags;
mod foreign;
mod image;
mod journal;
mod mkfs;
mod opening;
mod sync;
mod trim;
