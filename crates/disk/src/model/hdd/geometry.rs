//! The positions of sectors, and the times at which they pass under the head.
//!
//! Sectors are numbered along a track, then along the next head of the cylinder, then along the next cylinder, always
//! from head 0. Skews turn each track against the one before, so that a transfer goes on right after the crossing. At
//! time 0 the start of sector 0 of the first track is under the head.

use super::spec::{HddSpec, ZoneSpec};
use crate::Lba;

/// A hard disk's layout.
#[derive(Debug, Clone)]
pub struct Geometry {
    heads: u32,
    rotation_ns: u64,
    zones: Vec<Zone>,
}

/// Neighbouring cylinders with equally long tracks.
#[derive(Debug, Clone)]
struct Zone {
    first_lba: u64,
    first_cylinder: u32,
    track_sectors: u32,
    track_skew: u64,
    cylinder_skew: u64,
}

/// The position of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectorPosition {
    /// The cylinder, counted from the outermost.
    pub cylinder: u32,
    /// The number of the surface.
    pub head: u32,
    /// The sector's number on its track.
    pub sector: u32,
    /// Sectors of the track.
    pub track_sectors: u32,
    /// Sectors from the index mark to the start of this one.
    pub slot: u32,
}

impl Geometry {
    /// Makes the layout that a specification describes.
    pub fn new(spec: &HddSpec) -> Geometry {
        let mut first_lba = 0;
        let zone = |zone: ZoneSpec| {
            let cylinders = u64::from(zone.last_cylinder - zone.first_cylinder + 1);
            let here = Zone {
                first_lba,
                first_cylinder: zone.first_cylinder,
                track_sectors: zone.sectors,
                track_skew: u64::from(zone.track_skew % zone.sectors),
                cylinder_skew: u64::from(zone.cylinder_skew % zone.sectors),
            };
            first_lba += cylinders * u64::from(spec.heads) * u64::from(zone.sectors);
            here
        };
        let zones = spec.zone_table().into_iter().map(zone).collect();
        Geometry { heads: spec.heads, rotation_ns: spec.rotation_ns(), zones }
    }

    /// Returns the time of one rotation in nanoseconds.
    pub fn rotation_ns(&self) -> u64 {
        self.rotation_ns
    }

    /// Returns the position of a sector. It must be one that the zones hold.
    pub fn locate(&self, at: Lba) -> SectorPosition {
        let zone = &self.zones[self.zones.partition_point(|z| z.first_lba <= at.0) - 1];
        let track_sectors = u64::from(zone.track_sectors);
        let heads = u64::from(self.heads);
        let (track, sector) = ((at.0 - zone.first_lba) / track_sectors, (at.0 - zone.first_lba) % track_sectors);
        let (cylinder, head) = (track / heads, track % heads);
        // Each cylinder adds the skews of its crossings from head to head, and the step to the next.
        let crossings = head + (heads - 1) * cylinder;
        let slot = (crossings * zone.track_skew + cylinder * zone.cylinder_skew + sector) % track_sectors;
        SectorPosition {
            cylinder: zone.first_cylinder + cylinder as u32,
            head: head as u32,
            sector: sector as u32,
            track_sectors: zone.track_sectors,
            slot: slot as u32,
        }
    }

    /// Returns the nanoseconds from the index mark to the start of a slot; `slot` may be the number
    /// of slots.
    fn angle_ns(&self, slot: u64, track_sectors: u32) -> u64 {
        slot * self.rotation_ns / u64::from(track_sectors)
    }

    /// Returns the nanoseconds from `now` until the start of `place` is under the head.
    pub fn latency_ns(&self, now_ns: u64, place: &SectorPosition) -> u64 {
        let angle_ns = self.angle_ns(u64::from(place.slot), place.track_sectors);
        let turned_ns = now_ns % self.rotation_ns;
        if angle_ns >= turned_ns { angle_ns - turned_ns } else { angle_ns + self.rotation_ns - turned_ns }
    }

    /// Returns the nanoseconds in which `sectors` from `place` on (at most a track) pass under the head. Exactly the
    /// difference of slot angles, so that an access that continues at the next sector has a latency of zero.
    pub fn passing_ns(&self, place: &SectorPosition, sectors: u32) -> u64 {
        let track = u64::from(place.track_sectors);
        let (from, to) = (u64::from(place.slot), u64::from(place.slot) + u64::from(sectors));
        let start_ns = self.angle_ns(from, place.track_sectors);
        if to <= track {
            self.angle_ns(to, place.track_sectors) - start_ns
        } else {
            self.rotation_ns - start_ns + self.angle_ns(to - track, place.track_sectors)
        }
    }

    /// Returns how many whole sectors from `place` on, at most `sectors`, have passed after
    /// `elapsed_ns`.
    pub fn passed(&self, place: &SectorPosition, sectors: u32, elapsed_ns: u64) -> u32 {
        let estimate = u128::from(elapsed_ns) * u128::from(place.track_sectors) / u128::from(self.rotation_ns);
        let mut passed = estimate.min(u128::from(sectors)) as u32;
        while passed < sectors && self.passing_ns(place, passed + 1) <= elapsed_ns {
            passed += 1;
        }
        while passed > 0 && self.passing_ns(place, passed) > elapsed_ns {
            passed -= 1;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::preset;
    use super::*;

    fn geometry(name: &str) -> Geometry {
        Geometry::new(&preset(name))
    }

    #[test]
    fn sectors_follow_tracks_heads_cylinders_and_zones() {
        let geometry = geometry("c9m");
        let at = |lba| {
            let place = geometry.locate(Lba(lba));
            (place.cylinder, place.head, place.sector, place.slot)
        };
        assert_eq!(at(0), (0, 0, 0, 0));
        assert_eq!(at(254), (0, 1, 0, 97));
        assert_eq!(at(254 * 12), (1, 0, 0, ((11 * 97 + 133) % 254)));
        // Cylinder 847 holds nothing: the next zone begins at 848, unskewed.
        assert_eq!(at(254 * 12 * 847 - 1).0, 846);
        assert_eq!(at(254 * 12 * 847), (848, 0, 0, 0));
        assert_eq!(at(17_930_567).0, 6961);
    }

    #[test]
    fn a_track_passes_in_a_rotation_from_any_slot() {
        let geometry = geometry("mpg3307at");
        for lba in [0, 1, 759, 760, 40_000_000, 60_046_559] {
            let place = geometry.locate(Lba(lba));
            assert_eq!(geometry.passing_ns(&place, place.track_sectors), geometry.rotation_ns());
            for sectors in [0, 1, 2, 100, 449] {
                let ns = geometry.passing_ns(&place, sectors);
                assert_eq!(geometry.passed(&place, place.track_sectors, ns), sectors);
                assert_eq!(geometry.passed(&place, place.track_sectors, ns + 1), sectors);
            }
        }
    }

    #[test]
    fn the_next_sector_has_no_latency() {
        let geometry = geometry("hds721616pla380");
        for lba in (0..1446).chain(300_000_000..300_000_500) {
            let (here, next) = (geometry.locate(Lba(lba)), geometry.locate(Lba(lba + 1)));
            if next.sector == 0 {
                continue;
            }
            let arrived = 777_777_777 + geometry.latency_ns(777_777_777, &here);
            assert_eq!(geometry.latency_ns(arrived + geometry.passing_ns(&here, 1), &next), 0, "{lba}");
        }
    }
}
