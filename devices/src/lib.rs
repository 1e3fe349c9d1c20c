//! Unlike devices, real ones and those that a machine plays: profiles of boards, computers and virtual machines with the
//! sources of their figures; processes and containers under the CPU quotas of the devices that they stand for; and
//! schedules that change these quotas.
//!
//! Nothing here knows of training.

pub mod burst;
pub mod compose;
pub mod heterogeneity;
pub mod profile;
pub mod quota;
pub mod schedule;
