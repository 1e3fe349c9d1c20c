//! The heterogeneity levels of the papers, which live beside the device profiles.

pub(crate) use omnilearn_devices::heterogeneity::HeterogeneityLevel;
