/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists RDMA devices through rdma-core: what a cross-domain run depends on is whether a port is up, how fast it is, and
 * whether the device does remote atomics.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/lib/nics.h"

#ifdef AFDEP_HAVE_VERBS

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/command.h"
#include "bench/lib/json.h"

static const char *atomics_name(enum ibv_atomic_cap cap)
{
    return cap == IBV_ATOMIC_GLOB ? "global" : cap == IBV_ATOMIC_HCA ? "hca" : "none";
}

static const char *link_name(uint8_t link_layer)
{
    if (link_layer == IBV_LINK_LAYER_ETHERNET)
        return "ethernet";
    return link_layer == IBV_LINK_LAYER_INFINIBAND ? "infiniband" : NULL;
}

/* From the kernel's own words ("400 Gb/sec (4X NDR)"): the verbs field is too narrow for speeds beyond NDR. */
static double port_rate(const char *root, const char *device, int port)
{
    char file[512];
    snprintf(file, sizeof file, "%s/sys/class/infiniband/%s/ports/%d/rate", root, device, port);
    char *text = afdep_file_text(file);
    double rate = text ? strtod(text, NULL) : 0;
    free(text);
    return rate;
}

/* "0000:19:00.0": where the kernel's link to the device ends. NULL for what is no PCI device. */
static const char *pci_of(const char *root, const char *device, char *target, size_t size)
{
    char link[512];
    snprintf(link, sizeof link, "%s/sys/class/infiniband/%s/device", root, device);
    ssize_t length = readlink(link, target, size - 1);
    if (length <= 0)
        return NULL;
    target[length] = 0;
    const char *name = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
    unsigned domain, bus, slot, function;
    return sscanf(name, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4 ? name : NULL;
}

/* IBV_MTU_256 is 1, and every next one is twice as much. */
static cJSON *mtu_json(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? cJSON_CreateNumber(128 << mtu) : cJSON_CreateNull();
}

static cJSON *port_json(struct ibv_context *context, const char *root, const char *device, int port)
{
    struct ibv_port_attr attributes;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "port", port);
    memset(&attributes, 0, sizeof attributes);
    if (ibv_query_port(context, (uint8_t)port, &attributes) == 0) {
        /* ibv_port_state_str() gives "PORT_ACTIVE"; the prefix says nothing. */
        const char *state = ibv_port_state_str(attributes.state);
        cJSON_AddItemToObject(json, "state",
                              afdep_json_string(strncmp(state, "PORT_", 5) == 0 ? state + 5 : state));
        cJSON_AddItemToObject(json, "link", afdep_json_string(link_name(attributes.link_layer)));
        cJSON_AddItemToObject(json, "mtu", mtu_json(attributes.active_mtu));
    } else {
        cJSON_AddNullToObject(json, "state");
        cJSON_AddNullToObject(json, "link");
        cJSON_AddNullToObject(json, "mtu");
    }
    double rate = port_rate(root, device, port);
    cJSON_AddItemToObject(json, "rate_gbits_per_s", rate > 0 ? cJSON_CreateNumber(rate) : cJSON_CreateNull());
    return json;
}

static cJSON *device_json(const char *root, struct ibv_device *device)
{
    struct ibv_device_attr attributes;
    char target[512];
    const char *name = ibv_get_device_name(device);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "name", afdep_json_string(name));
    cJSON_AddItemToObject(json, "pci", afdep_json_string(pci_of(root, name, target, sizeof target)));
    struct ibv_context *context = ibv_open_device(device);
    memset(&attributes, 0, sizeof attributes);
    int known = context && ibv_query_device(context, &attributes) == 0;
    cJSON_AddItemToObject(json, "firmware", afdep_json_string(known ? attributes.fw_ver : NULL));
    cJSON_AddItemToObject(json, "atomics", afdep_json_string(known ? atomics_name(attributes.atomic_cap) : NULL));
    cJSON *ports = cJSON_AddArrayToObject(json, "ports");
    for (int port = 1; known && port <= attributes.phys_port_cnt; port++)
        cJSON_AddItemToArray(ports, port_json(context, root, name, port));
    if (context)
        ibv_close_device(context);
    return json;
}

cJSON *afdep_nics(const char *root)
{
    int count = 0;
    cJSON *nics = cJSON_CreateArray();
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; devices && i < count; i++)
        cJSON_AddItemToArray(nics, device_json(root, devices[i]));
    if (devices)
        ibv_free_device_list(devices);
    return nics;
}

#else

cJSON *afdep_nics(const char *root)
{
    (void)root;
    return cJSON_CreateNull();
}

#endif
