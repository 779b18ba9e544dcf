//! A hard disk's parameters.

use serde::{Deserialize, Serialize};

use super::super::parameter::{DriveKind, KindSpec, MS_MAX, Parameter, Unsound, ms_to_ns, number, switch};
use super::seek::SeekCurve;
pub use super::seek::SeekSpec;

/// Bounds the time that fitting a seek curve takes.
const CYLINDERS_MAX: u64 = 2_000_000;
const TRACK_SECTORS_MAX: u32 = 100_000;

/// A hard disk's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HddSpec {
    /// The kind of drive, [`DriveKind::Hdd`].
    pub kind: DriveKind,
    /// A one-line description for users.
    pub description: String,
    /// Advertised capacity in sectors.
    pub sectors: u64,
    /// Speed in rotations per minute.
    pub rpm: u32,
    /// The number of surfaces with data.
    pub heads: u32,
    /// Time of switching to another head, in ms.
    pub head_switch_ms: f64,
    /// Time of settling before a write after a move of at most one cylinder, in ms.
    pub write_settle_short_ms: f64,
    /// Time of settling before a write after a longer move, in ms.
    pub write_settle_long_ms: f64,
    /// Time of the electronics for each command, in ms.
    pub overhead_ms: f64,
    /// Bus rate in 10^6 bytes per second; `inf`: transfers take no time.
    pub bus_mb_s: f64,
    /// The largest command in sectors.
    pub transfer_sectors_max: u32,
    /// Commands the drive takes at once and chooses from; 1: no queueing.
    pub ncq_depth: u32,
    /// Zones given by a formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZoneFormula>,
    /// Zones given one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Vec<ZoneSpec>>,
    /// Parameters of the seek curve.
    pub seek: SeekSpec,
    /// The buffer on board.
    pub cache: CacheSpec,
}

/// Zones of equal width whose tracks shrink by a power law from the outermost to the innermost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneFormula {
    /// The number of zones.
    pub count: u32,
    /// Cylinders in each zone.
    pub cylinders_each: u32,
    /// Sectors per track in the outermost zone.
    pub outer_sectors: u32,
    /// Sectors per track in the innermost zone.
    pub inner_sectors: u32,
    /// The exponent of the power law.
    pub exponent: f64,
    /// Skew from a track to the next of its cylinder.
    pub track_skew_ms: f64,
    /// Skew from a cylinder to the next.
    pub cylinder_skew_ms: f64,
}

/// Neighbouring cylinders with equally long tracks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneSpec {
    /// The zone's outermost cylinder.
    pub first_cylinder: u32,
    /// The zone's innermost cylinder.
    pub last_cylinder: u32,
    /// Sectors of each track.
    pub sectors: u32,
    /// Skew from a track to the next of its cylinder, in sectors.
    pub track_skew: u32,
    /// Skew from a cylinder to the next, in sectors.
    pub cylinder_skew: u32,
}

/// The buffer on board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// True if reads are answered from the buffer where it has the data.
    pub read: bool,
    /// True if the drive reads on after a read from the media.
    pub read_ahead: bool,
    /// True if a write completes when it is in the buffer.
    pub write: bool,
    /// The number of streams that the buffer can hold.
    pub segments: u32,
    /// Sectors of each segment.
    pub segment_sectors: u32,
    /// The most that may wait in the buffer to be written, in KiB.
    pub dirty_kib: u32,
    /// The number of oldest extents among which the nearest is written next; 1: always the oldest.
    pub destage_window: u32,
}

/// Every parameter of a hard disk that can be set by name.
const PARAMETERS: &[Parameter] = &[
    number("sectors", "advertised capacity, sectors of 512 bytes", 1.0, (1_u64 << 40) as f64),
    number("rpm", "rotations per minute", 1.0, 100_000.0),
    number("heads", "surfaces with data", 1.0, 255.0),
    number("head_switch_ms", "switching to another head, ms", 0.0, MS_MAX),
    number("write_settle_short_ms", "settling before a write after a move of at most one cylinder, ms", 0.0, MS_MAX),
    number("write_settle_long_ms", "settling before a write after a longer move, ms", 0.0, MS_MAX),
    number("overhead_ms", "the electronics' share of each command, ms", 0.0, MS_MAX),
    number("bus_mb_s", "bus rate, 10^6 bytes per second; inf: takes no time", 0.001, f64::INFINITY),
    number("transfer_sectors_max", "the largest command, sectors", 8.0, 65_536.0),
    number("ncq_depth", "commands the drive chooses from; 1: no queueing", 1.0, 256.0),
    number("zones.count", "zones", 1.0, 1000.0),
    number("zones.cylinders_each", "cylinders in each zone", 1.0, CYLINDERS_MAX as f64),
    number("zones.outer_sectors", "sectors per track in the outermost zone", 1.0, TRACK_SECTORS_MAX as f64),
    number("zones.inner_sectors", "sectors per track in the innermost zone", 1.0, TRACK_SECTORS_MAX as f64),
    number("zones.exponent", "power of the shrinking from outer to inner", 0.01, 100.0),
    number("zones.track_skew_ms", "skew from a track to the next of its cylinder, ms", 0.0, MS_MAX),
    number("zones.cylinder_skew_ms", "skew from a cylinder to the next, ms", 0.0, MS_MAX),
    number("seek.track_ms", "seek to the next cylinder, ms", 0.0, MS_MAX),
    number("seek.average_ms", "mean seek over all pairs of cylinders, ms", 0.0, MS_MAX),
    number("seek.full_ms", "seek from the first cylinder to the last, ms", 0.0, MS_MAX),
    number("seek.a_ms", "a of a + b sqrt(d), ms, below the knee", -MS_MAX, MS_MAX),
    number("seek.b_ms", "b of a + b sqrt(d), ms", 0.0, MS_MAX),
    number("seek.c_ms", "c of c + e d, ms, from the knee on", -MS_MAX, MS_MAX),
    number("seek.e_ms", "e of c + e d, ms per cylinder", 0.0, MS_MAX),
    number("seek.knee", "where the curve becomes a line, cylinders", 2.0, CYLINDERS_MAX as f64),
    switch("cache.read", "reads are answered from the buffer: on, off"),
    switch("cache.read_ahead", "the drive reads on after a read: on, off"),
    switch("cache.write", "writes are done when in the buffer: on, off"),
    number("cache.segments", "streams the buffer holds", 1.0, 1024.0),
    number("cache.segment_sectors", "sectors of each stream", 1.0, (1 << 24) as f64),
    number("cache.dirty_kib", "data that may wait in the buffer to be written, KiB", 0.0, (1 << 20) as f64),
    number("cache.destage_window", "extents from which the nearest is written next; 1: the oldest", 1.0, 256.0),
];

impl KindSpec for HddSpec {
    const PARAMETERS: &'static [&'static [Parameter]] = &[PARAMETERS];
    const CACHE_SWITCHES: &'static [&'static str] = &["cache.read", "cache.read_ahead", "cache.write"];

    fn check(&self) -> Result<(), Unsound> {
        self.check_zones()?;
        let held: u64 = self.zone_table().iter().map(|z| z.sectors_of(self.heads)).sum();
        if held < self.sectors {
            return Err(Unsound::new("sectors", format!("the zones hold only {held} sectors")));
        }
        let curve = SeekCurve::new(&self.seek, self.cylinders())?;
        self.check_skews(curve.ns(1))
    }
}

impl HddSpec {
    /// Returns the zones in order, however they are given.
    pub(crate) fn zone_table(&self) -> Vec<ZoneSpec> {
        match (&self.zones, &self.zone) {
            (Some(formula), _) => formula.table(self.rotation_ns()),
            (None, zones) => zones.clone().unwrap_or_default(),
        }
    }

    /// Returns the time of one rotation in nanoseconds.
    pub fn rotation_ns(&self) -> u64 {
        let rpm = u64::from(self.rpm);
        (60_000_000_000 + rpm / 2) / rpm
    }

    /// Returns the number of cylinders, gaps between zones included.
    pub(crate) fn cylinders(&self) -> u64 {
        match (&self.zones, &self.zone) {
            (Some(formula), _) => u64::from(formula.count) * u64::from(formula.cylinders_each),
            (None, Some(zones)) => zones.last().map_or(0, |z| u64::from(z.last_cylinder) + 1),
            (None, None) => 0,
        }
    }

    fn check_zones(&self) -> Result<(), Unsound> {
        if self.zones.is_some() == self.zone.is_some() {
            return Err(Unsound::new("zones", "give either [zones] (a formula) or zone = [ … ] (one by one)"));
        }
        if self.cylinders() > CYLINDERS_MAX {
            let problem = format!("{} cylinders; at most {CYLINDERS_MAX} are supported", self.cylinders());
            return Err(Unsound::new("zones.cylinders_each", problem));
        }
        if let Some(formula) = &self.zones
            && formula.inner_sectors > formula.outer_sectors
        {
            return Err(Unsound::new("zones.inner_sectors", "inner tracks cannot hold more than outer ones"));
        }
        let mut next = 0;
        for zone in self.zone.iter().flatten() {
            let in_order = zone.first_cylinder >= next && zone.last_cylinder >= zone.first_cylinder;
            if !in_order || u64::from(zone.last_cylinder) >= CYLINDERS_MAX {
                let (first, last) = (zone.first_cylinder, zone.last_cylinder);
                return Err(Unsound::new("zone", format!("cylinders {first} to {last} are not in ascending order")));
            }
            if !(1..=TRACK_SECTORS_MAX).contains(&zone.sectors) {
                let problem = format!("must be from 1 to {TRACK_SECTORS_MAX}, is {}", zone.sectors);
                return Err(Unsound::new("zone.sectors", problem));
            }
            next = zone.last_cylinder + 1;
        }
        match self.zone.as_ref().is_some_and(Vec::is_empty) {
            true => Err(Unsound::new("zone", "there must be at least one zone")),
            false => Ok(()),
        }
    }

    /// Refuses a skew that is shorter than the move it covers: it would cost a rotation at every
    /// crossing.
    fn check_skews(&self, track_seek_ns: u64) -> Result<(), Unsound> {
        let settle = ms_to_ns(self.write_settle_short_ms);
        let switch = ms_to_ns(self.head_switch_ms);
        let (track, cylinder) = match self.zones {
            Some(_) => ("zones.track_skew_ms", "zones.cylinder_skew_ms"),
            None => ("zone.track_skew", "zone.cylinder_skew"),
        };
        for zone in self.zone_table() {
            let skew_ns = |skew: u32| u64::from(skew) * self.rotation_ns() / u64::from(zone.sectors);
            let head_ns = switch + settle;
            let needs = |field, what: &str, ns: u64, skew| {
                let (ms, has) = (ns as f64 / 1e6, skew_ns(skew) as f64 / 1e6);
                let zone = zone.first_cylinder;
                let problem = format!(
                    "{what} takes {ms} ms to settle for a write, but the skew of the zone at cylinder {zone} is {has} ms: every crossing would lose a rotation"
                );
                Err(Unsound::new(field, problem))
            };
            if self.heads > 1 && skew_ns(zone.track_skew) < head_ns {
                return needs(track, "a head switch", head_ns, zone.track_skew);
            }
            let step_ns = track_seek_ns.max(if self.heads > 1 { switch } else { 0 }) + settle;
            if zone.last_cylinder > zone.first_cylinder && skew_ns(zone.cylinder_skew) < step_ns {
                return needs(cylinder, "a step to the next cylinder", step_ns, zone.cylinder_skew);
            }
        }
        Ok(())
    }
}

impl ZoneFormula {
    fn table(&self, rotation_ns: u64) -> Vec<ZoneSpec> {
        let zone = |i: u32| {
            let sectors = self.track_sectors(i);
            let skew = |ms: f64| (ms_to_ns(ms) * u64::from(sectors)).div_ceil(rotation_ns) as u32;
            let first_cylinder = i * self.cylinders_each;
            ZoneSpec {
                first_cylinder,
                last_cylinder: first_cylinder + self.cylinders_each - 1,
                sectors,
                track_skew: skew(self.track_skew_ms),
                cylinder_skew: skew(self.cylinder_skew_ms),
            }
        };
        (0..self.count).map(zone).collect()
    }

    fn track_sectors(&self, zone: u32) -> u32 {
        let (outer, inner) = (f64::from(self.outer_sectors), f64::from(self.inner_sectors));
        let inward = if self.count > 1 { f64::from(zone) / f64::from(self.count - 1) } else { 0.0 };
        (outer - (outer - inner) * inward.powf(self.exponent) + 0.5).floor() as u32
    }
}

impl ZoneSpec {
    fn sectors_of(&self, heads: u32) -> u64 {
        u64::from(self.last_cylinder - self.first_cylinder + 1) * u64::from(heads) * u64::from(self.sectors)
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::super::spec::DriveSpec;
    use super::*;

    /// Returns a built-in hard disk.
    pub(in super::super::super) fn preset(name: &str) -> HddSpec {
        match DriveSpec::preset(name).unwrap() {
            DriveSpec::Hdd(spec) => spec,
            other => panic!("{other:?} is no hard disk"),
        }
    }

    #[test]
    fn zones_follow_the_formula() {
        let sectors = |name| -> Vec<u32> { preset(name).zone_table().iter().map(|z| z.sectors).collect() };
        let mpg = [760, 749, 733, 715, 695, 674, 653, 630, 606, 582, 556, 531, 504, 477, 450];
        assert_eq!(sectors("mpg3307at"), mpg);
        let st = [1452, 1426, 1391, 1350, 1306, 1259, 1210, 1158, 1105, 1050, 993, 935, 875, 815, 753, 690];
        assert_eq!(sectors("st3160812as"), st);
        let hds = [
            1447, 1442, 1434, 1423, 1409, 1394, 1378, 1360, 1340, 1320, 1298, 1275, 1251, 1226, 1200, 1173, 1145, 1117,
            1087, 1057, 1025, 993, 961, 927, 893, 858, 822, 786, 749, 711,
        ];
        assert_eq!(sectors("hds721616pla380"), hds);
    }

    #[test]
    fn skews_and_sizes_are_those_of_the_sheet() {
        for (name, cylinders, held, outer, inner) in [
            ("mpg3307at", 32_235, 60_053_805, (96, 124), (57, 73)),
            ("mpg3307at-as-published", 32_235, 60_053_805, (110, 146), (65, 87)),
            ("st3160812as", 140_752, 312_610_192, (227, 227), (108, 108)),
            ("hds721616pla380", 139_860, 321_687_324, (244, 244), (120, 120)),
            ("c9m", 6_962, 17_930_568, (97, 133), (88, 80)),
        ] {
            let spec = preset(name);
            let zones = spec.zone_table();
            let skews = |zone: &ZoneSpec| (zone.track_skew, zone.cylinder_skew);
            assert_eq!(spec.cylinders(), cylinders, "{name}");
            assert_eq!(zones.iter().map(|z| z.sectors_of(spec.heads)).sum::<u64>(), held, "{name}");
            assert_eq!((skews(&zones[0]), skews(zones.last().unwrap())), (outer, inner), "{name}");
        }
    }
}
