//! Student's t: means of few samples, and whether two of them differ.

/// Quantiles of t at 97.5 %, for 1 to 30 degrees of freedom.
const QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The quantile for very many degrees of freedom.
const NORMAL: f64 = 1.960;

/// A mean with half of its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Half of the interval.
    pub half: f64,
    /// The number of samples, at least 2.
    pub samples: u32,
}

impl Mean {
    /// Returns the mean of samples; `None` if there are fewer than two.
    pub fn of(samples: &[f64]) -> Option<Mean> {
        let count = samples.len() as f64;
        if samples.len() < 2 {
            return None;
        }
        let value = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - value).powi(2)).sum();
        let half = quantile(count - 1.0) * (squares / (count - 1.0) / count).sqrt();
        Some(Mean { value, half, samples: samples.len() as u32 })
    }

    /// Returns the variance of the mean, and its degrees of freedom.
    fn variance(&self) -> (f64, f64) {
        let freedom = f64::from(self.samples.max(2) - 1);
        ((self.half / quantile(freedom)).powi(2), freedom)
    }

    /// Returns true if two means differ at the level of 5 %, by Welch's test: their variances need not be equal.
    pub fn differs(&self, other: &Mean) -> bool {
        let ((one, one_freedom), (two, two_freedom)) = (self.variance(), other.variance());
        let distance = (self.value - other.value).abs();
        let variance = one + two;
        if variance <= 0.0 {
            return distance > 0.0;
        }
        let freedom = variance.powi(2) / (one.powi(2) / one_freedom + two.powi(2) / two_freedom);
        distance > quantile(freedom) * variance.sqrt()
    }
}

/// Returns the quantile for so many degrees of freedom, rounded down.
fn quantile(freedom: f64) -> f64 {
    QUANTILES.get((freedom.floor() as usize).max(1) - 1).copied().unwrap_or(NORMAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_mean_is_that_of_the_table() {
        // Standard deviation 1, three samples: 4.303 / sqrt(3).
        let mean = Mean::of(&[9.0, 10.0, 11.0]).unwrap();
        assert!((mean.value - 10.0).abs() < 1e-9 && (mean.half - 2.4843).abs() < 1e-3, "{mean:?}");
        assert_eq!((Mean::of(&[1.0]), Mean::of(&[])), (None, None));
    }

    #[test]
    fn means_differ_if_their_distance_is_more_than_chance() {
        let mean = |middle: f64| Mean::of(&[middle - 1.0, middle, middle + 1.0]).unwrap();
        // Four degrees of freedom: 2.776 * sqrt(2/3) = 2.27.
        assert!(!mean(10.0).differs(&mean(12.2)) && mean(10.0).differs(&mean(12.4)));
        let exact = |value| Mean::of(&[value, value]).unwrap();
        assert!(exact(1.0).differs(&exact(1.1)) && !exact(1.0).differs(&exact(1.0)));
    }
}
