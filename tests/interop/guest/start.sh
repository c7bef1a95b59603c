# Second program of the guest, in its final root: a soft-RoCE device on eth0, then the program
# that was asked for, then power off. The settings come from /exchange/settings.sh.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
. /exchange/settings.sh
ip link set lo up
for module in virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm; do modprobe $module; done
# An address by the MAC, without duplicate detection, so that GIDs are there at once.
sysctl -qw net.ipv6.conf.eth0.accept_dad=0 net.ipv6.conf.default.accept_dad=0
ip link set eth0 mtu "$MTU_BYTES" addrgenmode eui64
ip link set eth0 up
ip addr add "$IPV4" dev eth0
ip addr add "$IPV6" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0
cd /exchange || exit 1
sh ./program.sh
echo $? > /exchange/status
sync
echo o > /proc/sysrq-trigger
while :; do sleep 1; done
