//! What a machine is made of so that a client speaks a dialect to it.
//!
//! In comes a dialect and a VMID; out go the VM's configuration and what the machine's SMBIOS says. Nothing else tells a
//! client where to ask.

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::table::Dialect;
use crate::world::machine::SERIAL;

impl Dialect {
    /// A VM's UUID: EC2's are known by how theirs begin.
    pub fn uuid(self, vmid: u32) -> String {
        let begin = if self == Self::Ec2 { "ec200000" } else { "00000000" };
        format!("{begin}-0000-4000-8000-{vmid:012}")
    }

    /// The sample configuration with this UUID and these Notes.
    pub fn config(self, vmid: u32, notes: &str) -> String {
        let config = sample_config(VmId::new(vmid).unwrap(), notes);
        config.replace("uuid=00000000", &format!("uuid={}", &self.uuid(vmid)[..8]))
    }

    /// SMBIOS's type 1 table, in QEMU's words.
    pub fn smbios(self, vmid: u32) -> String {
        let uuid = self.uuid(vmid);
        match self {
            Self::NoCloud => format!("uuid={uuid},serial={SERIAL}"),
            Self::OpenStack => format!("uuid={uuid},product=OpenStack Nova"),
            // Nobody looks.
            Self::Identity => format!("uuid={uuid}"),
            // cloud-init 22.4 wants it twice; facter asks only where it is virtual.
            Self::Ec2 => format!("uuid={uuid},serial={uuid},product=KVM"),
        }
    }
}
