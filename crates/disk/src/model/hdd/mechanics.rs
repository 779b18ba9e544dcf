//! Arm and heads: the time of an access to the media.
//!
//! A track access waits for its first requested sector (no read on arrival). A move takes the longer of the seek and
//! the head switch; before a write the head settles.

use super::super::parameter::{Unsound, ms_to_ns};
use super::geometry::{Geometry, SectorPosition};
use super::seek::SeekCurve;
use super::spec::HddSpec;
use crate::Lba;

/// The moving parts of a drive.
#[derive(Debug, Clone)]
pub struct Mechanics {
    geometry: Geometry,
    seek: SeekCurve,
    head_switch_ns: u64,
    settle_short_ns: u64,
    settle_long_ns: u64,
    arm: Arm,
    /// The sector behind the last one accessed.
    last_end: u64,
}

/// The track that the arm is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arm {
    cylinder: u32,
    head: u32,
}

/// The time of one access to the media, by component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Time moving to the first track.
    pub seek_ns: u64,
    /// Time until the first sector is under the head.
    pub rotation_ns: u64,
    /// Time of sectors passing, crossings included.
    pub transfer_ns: u64,
    /// Cylinders the arm moved to the first track.
    pub seek_cylinders: u32,
    /// Sectors between the end of the access before and this one's first, if the arm moved to another cylinder.
    pub seek_sectors: u64,
}

impl Access {
    /// Returns the sum of all components in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.seek_ns + self.rotation_ns + self.transfer_ns
    }
}

/// The part of an access that lies on one track.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrackPart {
    pub(super) place: SectorPosition,
    pub(super) sectors: u32,
    pub(super) move_ns: u64,
    pub(super) latency_ns: u64,
}

impl Mechanics {
    /// Makes arm and heads at rest on the outermost track.
    ///
    /// # Errors
    /// If the seek curve cannot be fitted.
    pub(crate) fn new(spec: &HddSpec) -> Result<Mechanics, Unsound> {
        Ok(Mechanics {
            geometry: Geometry::new(spec),
            seek: SeekCurve::new(&spec.seek, spec.cylinders())?,
            head_switch_ns: ms_to_ns(spec.head_switch_ms),
            settle_short_ns: ms_to_ns(spec.write_settle_short_ms),
            settle_long_ns: ms_to_ns(spec.write_settle_long_ms),
            arm: Arm { cylinder: 0, head: 0 },
            last_end: 0,
        })
    }

    /// Returns the layout of the drive.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the sector behind the last one accessed.
    pub fn last_end(&self) -> Lba {
        Lba(self.last_end)
    }

    fn move_ns(&self, to: &SectorPosition, write: bool) -> u64 {
        let cylinders = self.arm.cylinder.abs_diff(to.cylinder);
        let switch_ns = if self.arm.head == to.head { 0 } else { self.head_switch_ns };
        let move_ns = self.seek.ns(cylinders).max(switch_ns);
        match (write && move_ns > 0, cylinders <= 1) {
            (false, _) => move_ns,
            (true, true) => move_ns + self.settle_short_ns,
            (true, false) => move_ns + self.settle_long_ns,
        }
    }

    /// Returns the nanoseconds from `now` until the first sector has passed.
    pub fn positioning_ns(&self, now_ns: u64, at: Lba, write: bool) -> u64 {
        let piece = self.piece(now_ns, at, 1, write);
        piece.move_ns + piece.latency_ns + self.geometry.passing_ns(&piece.place, 1)
    }

    /// Returns the nanoseconds from `now` until the first sector begins to pass, if they are fewer
    /// than `limit_ns`.
    pub(super) fn positioning_below(&self, now_ns: u64, at: Lba, write: bool, limit_ns: u64) -> Option<u64> {
        let place = self.geometry.locate(at);
        let move_ns = self.move_ns(&place, write);
        if move_ns >= limit_ns {
            return None;
        }
        let ns = move_ns + self.geometry.latency_ns(now_ns + move_ns, &place);
        (ns < limit_ns).then_some(ns)
    }

    /// Computes the first piece of an access, without performing it.
    pub(super) fn piece(&self, now_ns: u64, at: Lba, sectors: u64, write: bool) -> TrackPart {
        let place = self.geometry.locate(at);
        let move_ns = self.move_ns(&place, write);
        let latency_ns = self.geometry.latency_ns(now_ns + move_ns, &place);
        let on_track = u64::from(place.track_sectors - place.sector);
        TrackPart { place, sectors: sectors.min(on_track) as u32, move_ns, latency_ns }
    }

    /// Moves the arm to where `sectors` of a piece that began at `at` end.
    pub(super) fn follow(&mut self, piece: &TrackPart, at: Lba, sectors: u32) {
        self.arm = Arm { cylinder: piece.place.cylinder, head: piece.place.head };
        self.last_end = at.0 + u64::from(sectors);
    }

    /// Accesses at least one sector, from the instant `now` on.
    pub fn access(&mut self, now_ns: u64, at: Lba, sectors: u64, write: bool) -> Access {
        let first = self.piece(now_ns, at, sectors, write);
        let mut access = Access { seek_ns: first.move_ns, rotation_ns: first.latency_ns, ..Access::default() };
        access.seek_cylinders = self.arm.cylinder.abs_diff(first.place.cylinder);
        if access.seek_cylinders != 0 {
            access.seek_sectors = self.last_end.abs_diff(at.0);
        }
        let end = at.0 + sectors;
        let (mut at, mut piece) = (at, first);
        let mut now_ns = now_ns + first.move_ns + first.latency_ns;
        loop {
            let passing_ns = self.geometry.passing_ns(&piece.place, piece.sectors);
            (now_ns, access.transfer_ns) = (now_ns + passing_ns, access.transfer_ns + passing_ns);
            self.follow(&piece, at, piece.sectors);
            at = Lba(self.last_end);
            if at.0 >= end {
                return access;
            }
            piece = self.piece(now_ns, at, end - at.0, write);
            let crossing_ns = piece.move_ns + piece.latency_ns;
            (now_ns, access.transfer_ns) = (now_ns + crossing_ns, access.transfer_ns + crossing_ns);
        }
    }
}
