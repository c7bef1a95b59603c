#!/bin/busybox sh
# First program of the guest. Its root is this machine's, read-only, with the unpacked packages
# and a folder in memory laid over it. Then /exchange/start.sh goes on.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
while read -r module; do $B insmod "/modules/$module"; done < /modules/order
SHARE=trans=virtio,version=9p2000.L,msize=512000
$B mount -t 9p -o $SHARE,ro,cache=loose host /host
$B mount -t 9p -o $SHARE,ro,cache=loose tree /tree
$B mount -t tmpfs tmpfs /writable
$B mkdir /writable/upper /writable/work
$B mount -t overlay -o lowerdir=/tree:/host,upperdir=/writable/upper,workdir=/writable/work \
    overlay /new
cd /new || exit 1
for folder in proc sys dev; do
    $B mkdir -p $folder
    $B mount --move /$folder $folder
done
$B mount -t tmpfs tmpfs run
$B mkdir -p exchange dev/pts dev/shm
$B mount -t devpts devpts dev/pts
$B mount -t tmpfs tmpfs dev/shm
$B mount -t 9p -o $SHARE,cache=none exchange exchange
exec $B switch_root /new /bin/sh /exchange/start.sh </dev/console >/dev/console 2>&1
