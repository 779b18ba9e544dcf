//! Numbers for people: few digits, grouped by thousands, the same decimals in everything that is compared.

/// Text in place of a missing number.
pub(super) const NONE: &str = "–";
/// Magnitude beyond which pictures and tables do not write digits out.
const WRITTEN_MAX: f64 = 1e15;

/// Number of decimals of numbers that stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimals(usize);

impl Decimals {
    /// Returns the decimals for three significant digits of the largest value, at most four
    /// decimals.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Decimals {
        let largest =
            values.into_iter().filter(|value| value.is_finite()).fold(0.0, |max: f64, value| max.max(value.abs()));
        Decimals(match largest {
            0.0 => 0,
            _ if largest >= 100.0 => 0,
            _ if largest >= 10.0 => 1,
            _ if largest >= 1.0 => 2,
            _ if largest >= 0.1 => 3,
            _ => 4,
        })
    }

    /// Returns no decimals where all values are whole numbers.
    pub(super) fn or_whole(self, values: impl IntoIterator<Item = f64>) -> Decimals {
        let whole = values.into_iter().all(|value| !value.is_finite() || value.fract() == 0.0);
        if whole { Decimals(0) } else { self }
    }

    /// Formats `value` with these decimals; a value too large or too small for that in powers of
    /// ten.
    pub(super) fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return NONE.to_owned();
        }
        let unseen = value != 0.0 && value.abs() < 0.5 * 10f64.powi(-(self.0 as i32)) && self.0 == 4;
        if value.abs() >= WRITTEN_MAX || unseen {
            return format!("{value:.2e}").replace('-', "−");
        }
        let digits = format!("{:.*}", self.0, value.abs());
        let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
        let is_zero = digits.bytes().all(|digit| matches!(digit, b'0' | b'.'));
        let sign = if value < 0.0 && !is_zero { "−" } else { "" };
        format!("{sign}{}{fraction}", grouped(whole))
    }

    /// Formats `value` in the same way, with a plus sign: for differences.
    pub(super) fn show_signed(self, value: f64) -> String {
        let shown = self.show(value);
        let is_zero = shown.bytes().all(|byte| !matches!(byte, b'1'..=b'9'));
        if value > 0.0 && !is_zero && value.is_finite() { format!("+{shown}") } else { shown }
    }
}

/// Groups digits with a comma before every three; four digits have none.
fn grouped(digits: &str) -> String {
    if digits.len() <= 4 {
        return digits.to_owned();
    }
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a number that stands alone.
pub(super) fn show(value: f64) -> String {
    Decimals::of([value]).or_whole([value]).show(value)
}

/// Formats a number as data: it reads back as the same number.
pub(super) fn exact(value: f64) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (12.345, "12.3"),
            (-1.005, "−1.00"),
            (50_000.0, "50,000"),
            (1458.0, "1458"),
            (1_234_567.8, "1,234,568"),
            (0.012_34, "0.0123"),
            (0.000_001, "1.00e−6"),
            (f64::NAN, "–"),
            (f64::NEG_INFINITY, "–"),
            (1e300, "1.00e300"),
            (-0.000_000_1, "−1.00e−7"),
        ] {
            assert_eq!(show(value), text);
        }
    }

    #[test]
    fn differences_have_their_sign() {
        let decimals = Decimals::of([13.0, 2.0]);
        assert_eq!(decimals.show_signed(13.0), "+13.0");
        assert_eq!(decimals.show_signed(-2.04), "−2.0");
        assert_eq!(decimals.show_signed(0.01), "0.0");
    }

    #[test]
    fn data_reads_back_exactly() {
        for value in [0.1 + 0.2, 1e-300, f64::MAX, f64::MIN_POSITIVE, -7.0, 5e-324, 1.0 / 3.0] {
            assert_eq!(exact(value).parse::<f64>(), Ok(value));
        }
        assert!(exact(f64::NAN).parse::<f64>().is_ok_and(f64::is_nan));
        assert_eq!(exact(f64::INFINITY).parse(), Ok(f64::INFINITY));
    }
}
