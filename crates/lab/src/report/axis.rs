//! Axes: the position of a value in a picture, and the values that are marked.

use super::number::Decimals;

/// Largest magnitude that is drawn: nothing that the lab measures comes near, and sums of larger
/// ones could overflow.
const DRAWN_MAX: f64 = 1e15;
/// Smallest difference, as a share of the values, that counts as one.
const SPAN_SHARE_MIN: f64 = 1e-9;
/// Smallest range: a smaller one is drawn as if there were none.
const SPAN_MIN: f64 = 1e-12;

/// Returns true if `value` has a place in a picture.
pub(super) fn is_drawn(value: f64) -> bool {
    value.is_finite() && value.abs() <= DRAWN_MAX
}

/// Returns the smallest and the largest value that has a place.
pub(super) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let drawn = values.into_iter().filter(|&value| is_drawn(value));
    drawn.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((min, max)) => Some((f64::min(min, value), f64::max(max, value))),
    })
}

/// An axis: values from `first` to `last`, which are marked every `step`, lie between two places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    first: f64,
    last: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Makes an axis with about `ticks` steps of 1, 2 or 5 times a power of ten between its marks.
    /// It ends at a mark, unless that would leave more than half a step empty.
    pub(super) fn round((min, max): (f64, f64), ticks: f64, (from, to): (f64, f64)) -> Axis {
        let (min, max) = widened(min, max);
        let step = round_step((max - min) / ticks);
        let (first, last) = ((min / step + 1e-6).floor() * step, (max / step - 1e-6).ceil() * step);
        let first = if min - first > 0.5 * step { min } else { first };
        let last = if last - max > 0.5 * step { max } else { last };
        Axis { first, last, step, from, to }
    }

    /// Makes an axis that ends where its values end.
    pub(super) fn exact((min, max): (f64, f64), ticks: f64, (from, to): (f64, f64)) -> Axis {
        let (min, max) = widened(min, max);
        Axis { first: min, last: max, step: round_step((max - min) / ticks), from, to }
    }

    /// Returns the place of `value`.
    pub(super) fn at(&self, value: f64) -> f64 {
        self.from + (value - self.first) / (self.last - self.first) * (self.to - self.from)
    }

    /// Returns the marked values.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let first = (self.first / self.step - 1e-6).ceil();
        let count = ((self.last / self.step + 1e-6).floor() - first).clamp(0.0, 50.0) as usize;
        (0..=count).map(|index| (first + index as f64) * self.step).collect()
    }

    /// Returns the factor that labels leave out, with its name for the axis's title.
    pub(super) fn factor(&self) -> (f64, &'static str) {
        match self.first.abs().max(self.last.abs()) {
            largest if largest >= 2e9 => (1e9, "billions"),
            largest if largest >= 2e6 => (1e6, "millions"),
            largest if largest >= 2e5 => (1e3, "thousands"),
            _ => (1.0, ""),
        }
    }

    /// Returns the label of a marked value.
    pub(super) fn label(&self, tick: f64) -> String {
        let (factor, _) = self.factor();
        let step = self.step / factor;
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as i32;
        // As many decimals as the step has.
        let decimals = match decimals {
            0 => Decimals::of([100.0]),
            1 => Decimals::of([10.0]),
            2 => Decimals::of([1.0]),
            3 => Decimals::of([0.1]),
            _ => Decimals::of([0.01]),
        };
        decimals.show(tick / factor)
    }

    /// Returns the axis's title: the metric, and the unit.
    pub(super) fn title(&self, what: &str, unit: &str) -> String {
        let (_, factor) = self.factor();
        match (unit, factor) {
            ("", "") => what.to_owned(),
            ("", factor) => format!("{what}, {factor}"),
            (unit, "") => format!("{what}, {unit}"),
            (unit, factor) => format!("{what}, {factor} of {unit}"),
        }
    }
}

/// Widens the range until it can be divided.
fn widened(min: f64, max: f64) -> (f64, f64) {
    let largest = min.abs().max(max.abs());
    let is_wide = max - min > SPAN_MIN && max - min > largest * SPAN_SHARE_MIN;
    match (is_wide, largest > SPAN_MIN) {
        (true, _) => (min, max),
        (false, true) => (min - largest * 0.5, max + largest * 0.5),
        (false, false) => (0.0, 1.0),
    }
}

/// Returns the next of 1, 2, 5, 10 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let leading = step / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|&round| leading <= round * 1.000_001);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_all_values() {
        let axis = Axis::round((0.0, 13.7), 5.0, (0.0, 100.0));
        assert_eq!(axis.ticks(), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!(axis.at(15.0), 100.0);
        // An end far from the next mark stays where it is.
        let axis = Axis::round((0.0, 10.7), 5.0, (0.0, 107.0));
        assert_eq!((axis.ticks(), axis.at(10.7)), (vec![0.0, 5.0, 10.0], 107.0));
        let axis = Axis::round((-0.3, 0.55), 4.0, (0.0, 1.0));
        let labels: Vec<String> = axis.ticks().into_iter().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["−0.5", "0.0", "0.5"]);
    }

    #[test]
    fn any_range_gives_a_finite_axis() {
        let ends = [0.0, 1e-320, -1e-13, 5e-9, 1.0, 1.0 + 1e-12, -7.0, 1e15, -1e15];
        for min in ends {
            for max in ends.into_iter().filter(|&max| max >= min) {
                for axis in [Axis::round((min, max), 5.0, (0.0, 300.0)), Axis::exact((min, max), 5.0, (300.0, 0.0))] {
                    assert!(axis.at(min).is_finite() && axis.at(max).is_finite(), "{min} {max}");
                    let ticks = axis.ticks();
                    assert!(!ticks.is_empty() && ticks.len() <= 51, "{min} {max}: {ticks:?}");
                    assert!(ticks.iter().all(|&tick| (-1.0..=301.0).contains(&axis.at(tick))), "{min} {max}");
                }
            }
        }
    }

    #[test]
    fn ranges_leave_out_what_has_no_place() {
        assert_eq!(range([f64::NAN, 2.0, f64::INFINITY, -1.0, 1e300]), Some((-1.0, 2.0)));
        assert_eq!(range([f64::NAN]), None);
    }

    #[test]
    fn large_values_are_labelled_in_millions() {
        let axis = Axis::round((0.0, 60_000_000.0), 5.0, (0.0, 1.0));
        assert_eq!(axis.title("sector", ""), "sector, millions");
        assert_eq!(axis.label(20_000_000.0), "20");
    }
}
