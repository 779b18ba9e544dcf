//! Sizes as they are typed: `4096`, `64K`, `1.5G`, `100MiB`, `100MB`.

/// The reason for which a text is no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It is no number with a unit.
    #[error("give a size such as 4096, 64K, 1.5G or 100MiB (powers of 1024), or 100MB (powers of 1000)")]
    Form,
    /// It does not fit into 64 bits.
    #[error("sizes end at 16 EiB")]
    TooLarge,
}

/// Letters of units, from the first power of 1024 (or 1000) on.
const LETTERS: &[u8] = b"KMGTPE";
/// Digits behind the point that are read: as many as fit into the product with any unit.
const FRACTION_DIGITS_MAX: usize = 18;

/// Parses a size in bytes: a number, a point with further digits, and a unit in letters of any case. `K`, `M`, `G`,
/// `T`, `P`, `E`, also with `iB`, are powers of 1024; with `B` alone they are powers of 1000. Part of a byte is
/// dropped.
///
/// # Errors
/// [`SizeError::Form`] for anything else, also a fraction without a unit; [`SizeError::TooLarge`] beyond 64 bits.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let (number, unit) = text.split_at(text.bytes().position(|byte| !is_number(byte)).unwrap_or(text.len()));
    let unit = unit_bytes(unit.as_bytes()).ok_or(SizeError::Form)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let has_digits = !whole.is_empty() && (1..=FRACTION_DIGITS_MAX).contains(&fraction.len());
    if !has_digits || fraction.contains('.') || unit == 1 && number.contains('.') {
        return Err(SizeError::Form);
    }
    // Only the number of digits can be wrong from here on.
    let whole: u64 = whole.parse().map_err(|_| SizeError::TooLarge)?;
    let part: u128 = fraction.parse().map_err(|_| SizeError::TooLarge)?;
    let scale = 10_u128.pow(fraction.len() as u32);
    let bytes = u128::from(whole) * u128::from(unit) + part * u128::from(unit) / scale;
    u64::try_from(bytes).map_err(|_| SizeError::TooLarge)
}

fn unit_bytes(unit: &[u8]) -> Option<u64> {
    let [letter, rest @ ..] = unit else { return Some(1) };
    let base: u64 = match rest {
        [] if letter.eq_ignore_ascii_case(&b'B') => return Some(1),
        [] => 1024,
        rest if rest.eq_ignore_ascii_case(b"iB") => 1024,
        rest if rest.eq_ignore_ascii_case(b"B") => 1000,
        _ => return None,
    };
    let power = LETTERS.iter().position(|known| known.eq_ignore_ascii_case(letter))?;
    base.checked_pow(power as u32 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64k", 64 << 10),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("1.5G", 3 << 29),
            ("100MiB", 100 << 20),
            ("100mib", 100 << 20),
            ("100MB", 100_000_000),
            ("1kB", 1000),
            ("0.5K", 512),
            ("1.0009K", 1024),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
            ("15.999999999999999999E", u64::MAX - 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", ".", "K", "+1", "-1", "1.", ".5G", "1.5", "1.5B", "1..5G", "1KK", "1Ki", "1 K", "1e3", "ß", "1ß"]
        {
            assert_eq!(parse(text), Err(SizeError::Form), "{text}");
        }
        for text in ["16E", "18446744073709551616", "18446744073709551615K", "99999999999999999999999"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    /// Units, their bytes, and the same in another case.
    const UNITS: [(&str, &str, u64); 8] = [
        ("K", "k", 1 << 10),
        ("MiB", "mib", 1 << 20),
        ("G", "g", 1 << 30),
        ("TiB", "tIb", 1 << 40),
        ("P", "p", 1 << 50),
        ("KB", "kb", 1000),
        ("MB", "mB", 1_000_000),
        ("TB", "tb", 1_000_000_000_000),
    ];

    proptest! {
        #[test]
        fn any_text_is_a_size_or_refused(text in ".{0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_number_without_a_unit_is_itself(bytes: u64) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
        }

        #[test]
        fn a_unit_multiplies(number in 0..4096_u64, unit in prop::sample::select(&UNITS)) {
            let (name, other, bytes) = unit;
            prop_assert_eq!(parse(&format!("{number}{name}")), Ok(number * bytes));
            prop_assert_eq!(parse(&format!("{number}.000{other}")), Ok(number * bytes));
        }

        /// Written with all its digits, a size is read back to the byte; with fewer, it is no larger.
        #[test]
        fn decimals_are_exact(bytes in 0..1_u64 << 53, digits in 0..12_usize) {
            let (whole, rest) = (bytes / 1_000_000_000_000, bytes % 1_000_000_000_000);
            prop_assert_eq!(parse(&format!("{whole}.{rest:012}TB")), Ok(bytes));
            let short = format!("{rest:012}");
            let short = parse(&format!("{whole}.{}TB", &short[..digits.max(1)])).unwrap();
            prop_assert!(short <= bytes && bytes - short < 10_u64.pow(12 - digits.max(1) as u32));
        }
    }
}
