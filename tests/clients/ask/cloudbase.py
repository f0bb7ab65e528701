"""Loads one of cloudbase-init's metadata services and prints what it has of the machine, each part between marks.

Only the route that Windows needs for the metadata address is left out, by cloudbase-init's own option.
"""

import sys

from cloudbaseinit import conf
from cloudbaseinit.metadata.services import ec2service, httpservice

kind = sys.argv[1]
conf.CONF(args=[], project="cloudbase-init", default_config_files=[])
conf.CONF.set_override("add_metadata_private_ip_route", False, kind)
service = {"openstack": httpservice.HttpService, "ec2": ec2service.EC2Service}[kind]()
assert service.load(), "the service is not there"


def tell(name, text):
    print(f"=== {name}\n{text}\n=== end {name} ")


tell("hostname", service.get_host_name())
tell("keys", "\n".join(sorted(service.get_public_keys())))
tell("user-data", service.get_user_data().decode())
network = service.get_network_details_v2()
if network:
    macs = {link.id: link.mac_address for link in network.links}
    lines = [
        f"{macs[found.link]} {found.address_cidr} {route.gateway}" for found in network.networks for route in found.routes
    ]
    tell("network", "\n".join(lines))
