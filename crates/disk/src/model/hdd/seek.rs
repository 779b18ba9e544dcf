//! The seek curve: time for a distance in cylinders.
//!
//! `T(0) = 0`, `T(1)` as published, then `a + b sqrt(d)` up to the knee and `c + e d` from there on (C. Ruemmler and
//! J. Wilkes, "An introduction to disk drive modeling", 1994). Three published figures (next track, average, full
//! stroke) determine the constants: the pieces join with equal value and slope, the mean over all pairs of cylinders is
//! the average.

use serde::{Deserialize, Serialize};

use super::super::parameter::Unsound;

/// Fewer cylinders give a fitted seek curve nothing to fit.
const CYLINDERS_FITTED_MIN: u64 = 16;

/// Seek times: three published figures, the constants of a fitted curve, or measured points.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeekSpec {
    /// Time of a seek to the next cylinder, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track_ms: Option<f64>,
    /// Mean seek time over all pairs of cylinders, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_ms: Option<f64>,
    /// Time of a seek from the first cylinder to the last, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_ms: Option<f64>,
    /// The constant `a` of `a + b sqrt(d)`, for distances below the knee.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_ms: Option<f64>,
    /// The constant `b` of `a + b sqrt(d)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_ms: Option<f64>,
    /// The constant `c` of `c + e d`, for distances from the knee on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c_ms: Option<f64>,
    /// The constant `e` of `c + e d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e_ms: Option<f64>,
    /// The distance from which the curve is a line, in cylinders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<u32>,
    /// Distances in cylinders and times in ms; interpolated linearly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<Vec<(u32, f64)>>,
}

impl SeekSpec {
    /// Refuses a fit where there is nothing to fit.
    pub(crate) fn check_cylinders(cylinders: u64) -> Result<(), Unsound> {
        match cylinders < CYLINDERS_FITTED_MIN {
            true => Err(Unsound::new("seek", format!("a drive of {cylinders} cylinders needs seek.points"))),
            false => Ok(()),
        }
    }
}

/// Below this share of the way from track to full seek no curve of this form has the average.
const SHARE_LINEAR: f64 = 1.0 / 3.0;
/// Above this share the square root alone is too flat; the curve then jumps after the first cylinder.
const SHARE_ROOT: f64 = 8.0 / 15.0;
/// The position of the knee of such a jumping curve, as a share of the full stroke.
const KNEE_SHARE: f64 = 0.40;

/// The function from seek distance to time.
#[derive(Debug, Clone, PartialEq)]
pub enum SeekCurve {
    /// Square root, then a line.
    Fitted(Fitted),
    /// Measured distances in cylinders and times in ms, ascending; interpolated linearly, constant
    /// beyond the last.
    Points(Vec<(u32, f64)>),
}

/// Constants of a fitted curve, in ms and cylinders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fitted {
    /// The constant `T(1)`, in ms.
    pub track_ms: f64,
    /// The constant `a` of `a + b sqrt(d)`.
    pub a_ms: f64,
    /// The constant `b` of `a + b sqrt(d)`.
    pub b_ms: f64,
    /// The constant `c` of `c + e d`.
    pub c_ms: f64,
    /// The constant `e` of `c + e d`.
    pub e_ms: f64,
    /// The first distance on the line, in cylinders.
    pub knee: u32,
}

impl SeekCurve {
    /// Makes the curve of a drive with this many cylinders.
    pub(crate) fn new(spec: &SeekSpec, cylinders: u64) -> Result<SeekCurve, Unsound> {
        match *spec {
            SeekSpec {
                track_ms: Some(track),
                average_ms: Some(average),
                full_ms: Some(full),
                a_ms: None,
                b_ms: None,
                c_ms: None,
                e_ms: None,
                knee: None,
                points: None,
            } => fit(track, average, full, cylinders).map(SeekCurve::Fitted),
            SeekSpec {
                track_ms: Some(track_ms),
                average_ms: None,
                full_ms: None,
                a_ms: Some(a_ms),
                b_ms: Some(b_ms),
                c_ms: Some(c_ms),
                e_ms: Some(e_ms),
                knee: Some(knee),
                points: None,
            } => Ok(SeekCurve::Fitted(Fitted { track_ms, a_ms, b_ms, c_ms, e_ms, knee })),
            SeekSpec {
                track_ms: None,
                average_ms: None,
                full_ms: None,
                a_ms: None,
                b_ms: None,
                c_ms: None,
                e_ms: None,
                knee: None,
                points: Some(ref points),
            } => checked_points(points),
            _ => Err(Unsound::new(
                "seek",
                "give track_ms, average_ms and full_ms, or track_ms, a_ms, b_ms, c_ms, e_ms and knee, or points",
            )),
        }
    }

    /// Returns the nanoseconds of a move over `cylinders`.
    pub fn ns(&self, cylinders: u32) -> u64 {
        if cylinders == 0 {
            return 0;
        }
        let ms = match self {
            SeekCurve::Fitted(fitted) => fitted.ms(cylinders),
            SeekCurve::Points(points) => interpolate(points, cylinders),
        };
        super::super::parameter::ms_to_ns(ms)
    }
}

impl Fitted {
    fn ms(&self, cylinders: u32) -> f64 {
        let d = f64::from(cylinders);
        match cylinders {
            1 => self.track_ms,
            _ if cylinders < self.knee => self.a_ms + self.b_ms * d.sqrt(),
            _ => self.c_ms + self.e_ms * d,
        }
    }

    /// Returns the curve whose line continues the root at the knee.
    fn join(track_ms: f64, a_ms: f64, b_ms: f64, knee: u32) -> Fitted {
        let root = f64::from(knee).sqrt();
        Fitted { track_ms, a_ms, b_ms, c_ms: a_ms + b_ms * root / 2.0, e_ms: b_ms / (2.0 * root), knee }
    }
}

fn interpolate(points: &[(u32, f64)], cylinders: u32) -> f64 {
    let above = points.partition_point(|(distance, _)| *distance < cylinders);
    let Some(&(high, high_ms)) = points.get(above) else {
        return points.last().map_or(0.0, |(_, ms)| *ms);
    };
    let (low, low_ms) = if above == 0 { (0, 0.0) } else { points[above - 1] };
    low_ms + (high_ms - low_ms) * f64::from(cylinders - low) / f64::from(high - low)
}

fn checked_points(points: &[(u32, f64)]) -> Result<SeekCurve, Unsound> {
    let unsound = |problem: String| Err(Unsound::new("seek.points", problem));
    if points.is_empty() {
        return unsound("there must be at least one point".into());
    }
    let mut last = 0;
    for &(distance, ms) in points {
        if distance <= last {
            return unsound(format!("distance {distance} does not follow {last}: distances ascend from 1"));
        }
        if !(0.0..=10_000.0).contains(&ms) {
            return unsound(format!("{ms} ms for distance {distance}: must be from 0 to 10000"));
        }
        last = distance;
    }
    Ok(SeekCurve::Points(points.to_vec()))
}

/// Sums over all distances of a drive, each weighted with how many pairs of cylinders have it.
struct Pairs {
    cylinders: f64,
    /// The element `roots[m]` is the sum of weight times square root, over distances up to `m`.
    roots: Vec<f64>,
}

impl Pairs {
    fn new(cylinders: u64) -> Pairs {
        let n = cylinders as f64;
        let mut sum = 0.0;
        let root = |d: u64| {
            sum += 2.0 * (n - d as f64) / (n * (n - 1.0)) * (d as f64).sqrt();
            sum
        };
        Pairs { cylinders: n, roots: (0..cylinders).map(root).collect() }
    }

    /// Returns the sum of the weights of the distances from 1 to `m`.
    fn weights(&self, m: u32) -> f64 {
        let (n, m) = (self.cylinders, f64::from(m));
        (2.0 * n * m - m * (m + 1.0)) / (n * (n - 1.0))
    }

    /// Returns the sum of weight times distance over the distances from 1 to `m`.
    fn distances(&self, m: u32) -> f64 {
        let (n, m) = (self.cylinders, f64::from(m));
        (n * m * (m + 1.0) - m * (m + 1.0) * (2.0 * m + 1.0) / 3.0) / (n * (n - 1.0))
    }

    /// Returns the factors of `a`, `b` and the track seek in the mean of a curve with this knee.
    fn mean_of(&self, knee: u32) -> (f64, f64, f64) {
        let first = self.weights(1);
        let all = self.weights(self.roots.len() as u32 - 1);
        let line = all - self.weights(knee - 1);
        let root = f64::from(knee).sqrt();
        let line_distances = self.distances(self.roots.len() as u32 - 1) - self.distances(knee - 1);
        let roots = self.roots[knee as usize - 1] - self.roots[1];
        (all - first, roots + line * root / 2.0 + line_distances / (2.0 * root), first)
    }

    fn mean(&self, curve: &Fitted) -> f64 {
        let (of_a, of_b, of_track) = self.mean_of(curve.knee);
        of_a * curve.a_ms + of_b * curve.b_ms + of_track * curve.track_ms
    }
}

fn fit(track: f64, average: f64, full: f64, cylinders: u64) -> Result<Fitted, Unsound> {
    SeekSpec::check_cylinders(cylinders)?;
    let stroke = cylinders as u32 - 1;
    let share = (average - track) / (full - track);
    if !(track <= full && share > SHARE_LINEAR && share < 1.0) {
        let problem = format!(
            "must lie more than a third of the way from track_ms to full_ms, and below full_ms: {track}, {average}, {full}"
        );
        return Err(Unsound::new("seek.average_ms", problem));
    }
    let pairs = Pairs::new(cylinders);
    let curve = if share < SHARE_ROOT {
        fit_smooth(track, average, full, stroke, &pairs)
    } else {
        fit_jump(track, average, full, stroke, &pairs)
    };
    match curve.b_ms >= 0.0 && curve.a_ms + curve.b_ms >= 0.0 {
        true => Ok(curve),
        false => Err(Unsound::new("seek.average_ms", format!("no curve has {track}, {average} and {full} ms"))),
    }
}

/// Fits root and line through track and full seek; the knee is chosen to give the mean.
fn fit_smooth(track: f64, average: f64, full: f64, stroke: u32, pairs: &Pairs) -> Fitted {
    let curve = |knee: u32| {
        let root = f64::from(knee).sqrt();
        let b = (full - track) / (root / 2.0 + f64::from(stroke) / (2.0 * root) - 1.0);
        Fitted::join(track, track - b, b, knee)
    };
    let (mut low, mut high) = (2, stroke);
    while low < high {
        let middle = low + (high - low) / 2;
        if pairs.mean(&curve(middle)) < average { low = middle + 1 } else { high = middle }
    }
    curve(low)
}

/// Fits a curve with a given knee; the mean and the full seek determine root and line, which then do not meet the track
/// seek.
fn fit_jump(track: f64, average: f64, full: f64, stroke: u32, pairs: &Pairs) -> Fitted {
    let knee = ((KNEE_SHARE * f64::from(stroke)).floor() as u32).max(2);
    let root = f64::from(knee).sqrt();
    let (of_a, of_b, of_track) = pairs.mean_of(knee);
    let full_b = root / 2.0 + f64::from(stroke) / (2.0 * root);
    let mean = average - of_track * track;
    let b = (mean - of_a * full) / (of_b - of_a * full_b);
    Fitted::join(track, full - b * full_b, b, knee)
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::preset;
    use super::*;

    fn curve(name: &str) -> SeekCurve {
        let spec = preset(name);
        SeekCurve::new(&spec.seek, spec.cylinders()).unwrap()
    }

    #[test]
    fn published_figures_give_the_constants_of_the_sheet() {
        for (name, a, b, c, e, knee) in [
            ("mpg3307at", 1.4168533036, 0.0831466964007, 6.09750276972, 0.000369252876785, 12_676),
            ("mpg3307at-as-published", 1.2205740514, 0.0794259486048, 5.43370700574, 0.000374334336237, 11_255),
            ("st3160812as", 0.749032115642, 0.050967884358, 7.54025168726, 9.56280830171e-5, 71_017),
            ("hds721616pla380", 2.28569064916, 0.0307169805126, 5.91832263461, 6.49345223789e-5, 55_943),
        ] {
            let SeekCurve::Fitted(fitted) = curve(name) else { panic!("{name} is not fitted") };
            assert_eq!(fitted.knee, knee, "{name}");
            for (is, expected) in [(fitted.a_ms, a), (fitted.b_ms, b), (fitted.c_ms, c), (fitted.e_ms, e)] {
                assert!((is - expected).abs() < 1e-9 * expected.abs(), "{name}: {is} instead of {expected}");
            }
        }
    }

    #[test]
    fn times_are_those_of_the_sheet() {
        for (name, points) in [
            ("mpg3307at", vec![(1, 1.5), (10, 1.6798), (1000, 4.0462), (10_745, 10.0357), (32_234, 18.0)]),
            ("mpg3307at-as-published", vec![(10, 1.4717), (1000, 3.7322), (10_745, 9.4537), (32_234, 17.5)]),
            ("st3160812as", vec![(10, 0.9102), (1000, 2.3608), (46_917, 11.7888), (140_751, 21.0)]),
            ("hds721616pla380", vec![(1, 1.0), (2, 2.3291), (1000, 3.2570), (46_620, 8.9180), (139_859, 15.0)]),
            ("c9m", vec![(1, 0.831), (11, 1.4485), (6894, 10.627), (6961, 10.627)]),
        ] {
            let curve = curve(name);
            assert_eq!(curve.ns(0), 0);
            for (distance, ms) in points {
                let is = curve.ns(distance) as f64 / 1e6;
                assert!((is - ms).abs() <= 0.000_05, "{name}: T({distance}) = {is}, not {ms}");
            }
        }
    }

    #[test]
    fn the_mean_over_all_pairs_is_the_published_average() {
        for name in ["mpg3307at", "mpg3307at-as-published", "st3160812as", "hds721616pla380"] {
            let spec = preset(name);
            let (curve, n) = (curve(name), spec.cylinders());
            let weighted = |d: u64| 2.0 * (n - d) as f64 / (n as f64 * (n - 1) as f64) * curve.ns(d as u32) as f64;
            let mean = (1..n).map(weighted).sum::<f64>() / 1e6;
            assert!((mean - spec.seek.average_ms.unwrap()).abs() < 0.001, "{name}: {mean}");
        }
    }

    #[test]
    fn points_must_ascend() {
        for points in [vec![], vec![(0, 1.0)], vec![(5, 1.0), (5, 2.0)], vec![(1, -1.0)], vec![(1, f64::NAN)]] {
            let spec = SeekSpec { points: Some(points), ..SeekSpec::default() };
            assert!(SeekCurve::new(&spec, 100).is_err());
        }
    }
}
