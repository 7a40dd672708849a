/* SPDX-License-Identifier: Apache-2.0 */
/* Which library this is. */
#include <afdep/afdep.h>

#include "core/native_tree.h"

const char *afdep_version(void)
{
    return AFDEP_VERSION;
}

const char *afdep_native_tree(void)
{
    return AFDEP_NATIVE_TREE;
}

int afdep_native_tree_dirty(void)
{
    return AFDEP_NATIVE_TREE_DIRTY;
}
