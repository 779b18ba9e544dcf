//! A command to a drive, what serving it took, and sums of that.

use moafs_runtime::Time;

use crate::{Lba, SECTOR};

/// What a drive is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Verb {
    /// Read sectors.
    Read,
    /// Write sectors; they may stay in the drive's buffer.
    Write,
    /// Write sectors to the media before saying that it is done.
    WriteFua,
    /// Write everything in the buffer to the media.
    Flush,
    /// What is in the sectors is no longer needed.
    Discard,
}

impl Verb {
    /// True for what moves data.
    pub fn is_transfer(self) -> bool {
        self == Verb::Read || self.is_write()
    }

    /// True for both kinds of write.
    pub fn is_write(self) -> bool {
        matches!(self, Verb::Write | Verb::WriteFua)
    }
}

/// One command to a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub verb: Verb,
    /// The first sector; without meaning for a flush.
    pub at: Lba,
    /// Length in sectors; 0 for a flush.
    pub sectors: u64,
}

impl Command {
    /// A read.
    pub fn read(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Read, at: Lba(at), sectors }
    }

    /// A write that may stay in the buffer.
    pub fn write(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Write, at: Lba(at), sectors }
    }

    /// A discard (TRIM, ERASE).
    pub fn discard(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Discard, at: Lba(at), sectors }
    }

    /// A flush of the buffer.
    pub fn flush() -> Command {
        Command { verb: Verb::Flush, at: Lba(0), sectors: 0 }
    }

    /// The sector behind the last one.
    pub fn end(&self) -> u64 {
        self.at.0 + self.sectors
    }
}

/// What serving one command took. The parts named `_ns` add up to `finished - started`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// When the drive began with the command: on arrival, or when it was done with the one before.
    pub started: Time,
    /// When the host got the answer.
    pub finished: Time,
    /// The drive's electronics: decoding, set-up.
    pub overhead_ns: u64,
    /// Waiting for the buffer or its background work: room for a write, a destage under way, read-ahead that is still to
    /// reach the requested sectors, a flush; for a chip that is busy with commands before.
    pub wait_ns: u64,
    /// Waiting for a flash drive to make room: copies and erases of garbage collection and merges.
    pub gc_ns: u64,
    /// Moving the arm to the first sector's track, head switch and write settle included.
    pub seek_ns: u64,
    /// Waiting for the first sector.
    pub rotation_ns: u64,
    /// Sectors passing under the head, track and cylinder crossings included; or flash pages read, loaded and programmed.
    pub transfer_ns: u64,
    /// The bus, as far as it does not overlap with the media.
    pub bus_ns: u64,
    /// Cylinders between where the arm was and the first sector's; 0 for commands that did not move it.
    pub seek_cylinders: u32,
    /// Sectors between the end of the last access to the media and this one's first; 0 without a seek.
    pub seek_sectors: u64,
    /// True if the command needed no access to the media of its own.
    pub cached: bool,
}

impl Service {
    /// Nanoseconds from start to end.
    pub fn service_ns(&self) -> u64 {
        self.finished.0 - self.started.0
    }

    /// True if the arm had to move to another cylinder.
    pub fn is_seek(&self) -> bool {
        self.seek_cylinders != 0
    }
}

/// Sums over served commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Reads and writes.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Discard commands.
    #[cfg_attr(feature = "serde", serde(default))]
    pub discards: u64,
    /// Reads and writes answered without an access of their own to the media.
    pub cached: u64,
    /// Commands for which the arm moved to another cylinder.
    pub seeks: u64,
    /// Cylinders crossed by these.
    pub seek_cylinders: u64,
    /// Sectors from the end of the access before to the first of these, summed.
    pub seek_sectors: u64,
    /// Waiting at the drive for commands before.
    pub queue_ns: u64,
    /// From start to end, flushes and discards included.
    pub service_ns: u64,
    /// See [`Service::overhead_ns`].
    pub overhead_ns: u64,
    /// See [`Service::wait_ns`].
    pub wait_ns: u64,
    /// See [`Service::gc_ns`].
    #[cfg_attr(feature = "serde", serde(default))]
    pub gc_ns: u64,
    /// See [`Service::seek_ns`].
    pub seek_ns: u64,
    /// See [`Service::rotation_ns`].
    pub rotation_ns: u64,
    /// See [`Service::transfer_ns`].
    pub transfer_ns: u64,
    /// See [`Service::bus_ns`].
    pub bus_ns: u64,
    /// No command at the drive (it may have destaged or read ahead), up to the start of the last command.
    pub idle_ns: u64,
}

impl Totals {
    /// Adds a command that arrived at `arrived`.
    pub fn add(&mut self, command: &Command, arrived: Time, service: &Service) {
        let bytes = command.sectors * SECTOR as u64;
        match command.verb {
            Verb::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + bytes),
            Verb::Write | Verb::WriteFua => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + bytes);
            }
            Verb::Flush => self.flushes += 1,
            Verb::Discard => self.discards += 1,
        }
        self.requests = self.reads + self.writes;
        self.cached += u64::from(service.cached && command.verb.is_transfer());
        self.seeks += u64::from(service.is_seek());
        self.seek_cylinders += u64::from(service.seek_cylinders);
        self.seek_sectors += service.seek_sectors;
        self.queue_ns += service.started.0 - arrived.0;
        self.service_ns += service.service_ns();
        self.overhead_ns += service.overhead_ns;
        self.wait_ns += service.wait_ns;
        self.gc_ns += service.gc_ns;
        self.seek_ns += service.seek_ns;
        self.rotation_ns += service.rotation_ns;
        self.transfer_ns += service.transfer_ns;
        self.bus_ns += service.bus_ns;
    }

    /// What was added since `earlier`, which was taken from the same drive.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            requests: self.requests - earlier.requests,
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            cached: self.cached - earlier.cached,
            seeks: self.seeks - earlier.seeks,
            seek_cylinders: self.seek_cylinders - earlier.seek_cylinders,
            seek_sectors: self.seek_sectors - earlier.seek_sectors,
            queue_ns: self.queue_ns - earlier.queue_ns,
            service_ns: self.service_ns - earlier.service_ns,
            overhead_ns: self.overhead_ns - earlier.overhead_ns,
            wait_ns: self.wait_ns - earlier.wait_ns,
            gc_ns: self.gc_ns - earlier.gc_ns,
            seek_ns: self.seek_ns - earlier.seek_ns,
            rotation_ns: self.rotation_ns - earlier.rotation_ns,
            transfer_ns: self.transfer_ns - earlier.transfer_ns,
            bus_ns: self.bus_ns - earlier.bus_ns,
            idle_ns: self.idle_ns - earlier.idle_ns,
        }
    }
}
