//! Conversions between the types of a file system and the structures of the wire.

use crate::abi::{Attr, AttrOut, EntryOut, Kstatfs, OpenOut, SetattrIn, SetattrValid, Statx, StatxOut, SxTime};
use crate::types::{
    AttrReply, Entry, FileAttr, FileHandle, OpenReply, SetAttr, SetTime, StatFs, StatxReply, Timestamp,
};

const NANOS_PER_SEC: u32 = 1_000_000_000;

/// `STATX_BASIC_STATS` and `STATX_BTIME`.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

impl From<&FileAttr> for Attr {
    fn from(attr: &FileAttr) -> Self {
        Self {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.secs as u64,
            mtime: attr.mtime.secs as u64,
            ctime: attr.ctime.secs as u64,
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev.0,
            blksize: attr.blksize,
            flags: 0,
        }
    }
}

impl From<&Entry> for EntryOut {
    fn from(entry: &Entry) -> Self {
        Self {
            nodeid: entry.node.0,
            generation: entry.generation,
            entry_valid: entry.entry_ttl.as_secs(),
            attr_valid: entry.attr_ttl.as_secs(),
            entry_valid_nsec: entry.entry_ttl.subsec_nanos(),
            attr_valid_nsec: entry.attr_ttl.subsec_nanos(),
            attr: Attr::from(&entry.attr),
        }
    }
}

impl From<&AttrReply> for AttrOut {
    fn from(reply: &AttrReply) -> Self {
        Self {
            attr_valid: reply.attr_ttl.as_secs(),
            attr_valid_nsec: reply.attr_ttl.subsec_nanos(),
            dummy: 0,
            attr: Attr::from(&reply.attr),
        }
    }
}

impl From<&OpenReply> for OpenOut {
    fn from(reply: &OpenReply) -> Self {
        Self { fh: reply.fh.0, open_flags: reply.flags.bits(), backing_id: 0 }
    }
}

impl From<&StatFs> for Kstatfs {
    fn from(st: &StatFs) -> Self {
        Self {
            blocks: st.blocks,
            bfree: st.bfree,
            bavail: st.bavail,
            files: st.files,
            ffree: st.ffree,
            bsize: st.bsize,
            namelen: st.namelen,
            frsize: st.frsize,
            ..Self::default()
        }
    }
}

impl From<Timestamp> for SxTime {
    fn from(time: Timestamp) -> Self {
        Self { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
    }
}

impl From<&StatxReply> for StatxOut {
    fn from(reply: &StatxReply) -> Self {
        let StatxReply { attr, btime, attributes, attributes_mask, attr_ttl } = reply;
        let stat = Statx {
            mask: STATX_BASIC | if btime.is_some() { STATX_BTIME } else { 0 },
            blksize: attr.blksize,
            attributes: *attributes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: *attributes_mask,
            atime: attr.atime.into(),
            btime: btime.unwrap_or_default().into(),
            ctime: attr.ctime.into(),
            mtime: attr.mtime.into(),
            rdev_major: attr.rdev.major(),
            rdev_minor: attr.rdev.minor(),
            ..Statx::default()
        };
        Self { attr_valid: attr_ttl.as_secs(), attr_valid_nsec: attr_ttl.subsec_nanos(), stat, ..Self::default() }
    }
}

/// Converts a time. Nanoseconds of a second or more, which the kernel never sends, are cut to the last one.
fn timestamp(secs: u64, nanos: u32) -> Timestamp {
    Timestamp { secs: secs as i64, nanos: nanos.min(NANOS_PER_SEC - 1) }
}

impl From<&SetattrIn> for SetAttr {
    fn from(set: &SetattrIn) -> Self {
        let valid = SetattrValid::from_bits_retain(set.valid);
        let has = |flag| valid.contains(flag);
        let time = |given, now, at| match (has(now), has(given)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::At(at)),
            (false, false) => None,
        };
        Self {
            mode: has(SetattrValid::MODE).then_some(set.mode),
            uid: has(SetattrValid::UID).then_some(set.uid),
            gid: has(SetattrValid::GID).then_some(set.gid),
            size: has(SetattrValid::SIZE).then_some(set.size),
            atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, timestamp(set.atime, set.atimensec)),
            mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, timestamp(set.mtime, set.mtimensec)),
            ctime: has(SetattrValid::CTIME).then_some(timestamp(set.ctime, set.ctimensec)),
            fh: has(SetattrValid::FH).then_some(FileHandle(set.fh)),
            kill_suidgid: has(SetattrValid::KILL_SUIDGID),
        }
    }
}
