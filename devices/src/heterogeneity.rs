//! Heterogeneity levels, and the CPU quotas that produce them.
//!
//! Source: OmniLearn (IEEE TPDS 2025), which splits a machine of 48 cores among four agents, and one of 168 among 32.

use std::fmt;

/// Agents and cores of the papers' fleet of 32, as `(cores of one agent, how many have them)`; 168 cores in all.
pub const FLEET_OF_32: [(u32, u32); 5] = [(2, 10), (4, 10), (6, 10), (16, 1), (32, 1)];

/// How unlike the agents are: the largest quota divided by the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeterogeneityLevel {
    /// All alike.
    Hl1,
    /// The strongest has twice the cores of the weakest.
    Hl2,
    /// Four times.
    Hl4,
    /// Eight times.
    Hl8,
}

impl HeterogeneityLevel {
    /// The level of this number.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Hl1),
            2 => Some(Self::Hl2),
            4 => Some(Self::Hl4),
            8 => Some(Self::Hl8),
            _ => None,
        }
    }

    /// The number of the level.
    pub fn number(self) -> u32 {
        match self {
            Self::Hl1 => 1,
            Self::Hl2 => 2,
            Self::Hl4 => 4,
            Self::Hl8 => 8,
        }
    }

    /// Cores of four agents on a machine of 48, as in the OmniLearn paper.
    fn paper_cores(self) -> [u32; 4] {
        match self {
            Self::Hl1 => [12, 12, 12, 12],
            Self::Hl2 => [12, 12, 8, 16],
            Self::Hl4 => [9, 9, 6, 24],
            Self::Hl8 => [6, 6, 4, 32],
        }
    }

    /// Ratios for any number of agents. Fewer than four take the last of the paper's four, which hold the weakest and the
    /// strongest; more than four repeat them, so that the level stays what it says as soon as there are two agents.
    pub fn ratios(self, agents: usize) -> Vec<u32> {
        let paper = self.paper_cores();
        let skipped = paper.len().saturating_sub(agents);
        paper.iter().copied().skip(skipped).cycle().take(agents).collect()
    }

    /// Quotas in cores: `total_cores · ratio / Σ ratios`.
    pub fn quotas(self, agents: usize, total_cores: f64) -> Vec<f64> {
        let ratios: Vec<f64> = self.ratios(agents).into_iter().map(f64::from).collect();
        share(&ratios, total_cores)
    }
}

/// Splits `total_cores` in these ratios: `total_cores · ratio / Σ ratios`.
pub fn share(ratios: &[f64], total_cores: f64) -> Vec<f64> {
    let sum: f64 = ratios.iter().sum();
    ratios.iter().map(|ratio| total_cores * ratio / sum).collect()
}

impl fmt::Display for HeterogeneityLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HL{}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [HeterogeneityLevel; 4] =
        [HeterogeneityLevel::Hl1, HeterogeneityLevel::Hl2, HeterogeneityLevel::Hl4, HeterogeneityLevel::Hl8];

    #[test]
    fn quotas_of_four_agents_follow_the_paper_and_sum_to_the_total() {
        let quotas = HeterogeneityLevel::Hl8.quotas(4, 1.8);
        for (quota, expected) in quotas.iter().zip([0.225, 0.225, 0.15, 1.2]) {
            assert!((quota - expected).abs() < 1e-12, "{quotas:?}");
        }
        for level in LEVELS {
            assert!((level.quotas(4, 1.8).iter().sum::<f64>() - 1.8).abs() < 1e-12, "{level}");
        }
    }

    #[test]
    fn every_number_of_agents_from_two_up_keeps_the_level() {
        for level in LEVELS {
            for agents in 2..=13 {
                let ratios = level.ratios(agents);
                assert_eq!(ratios.len(), agents);
                let (low, high) = (ratios.iter().min().unwrap(), ratios.iter().max().unwrap());
                assert_eq!(*high, low * level.number(), "{level} with {agents} agents: {ratios:?}");
            }
        }
    }

    #[test]
    fn the_fleet_of_32_is_what_its_name_says() {
        let agents: u32 = FLEET_OF_32.iter().map(|(_, agents)| agents).sum();
        let cores: u32 = FLEET_OF_32.iter().map(|(cores, agents)| cores * agents).sum();
        assert_eq!((agents, cores), (32, 168));
    }

    #[test]
    fn one_agent_gets_everything() {
        assert_eq!(HeterogeneityLevel::Hl8.quotas(1, 1.8), vec![1.8]);
    }

    #[test]
    fn only_the_papers_levels_exist() {
        for number in 0..20 {
            let level = HeterogeneityLevel::from_number(number);
            assert_eq!(level.is_some(), [1, 2, 4, 8].contains(&number));
            assert!(level.is_none_or(|level| level.number() == number));
        }
    }
}
